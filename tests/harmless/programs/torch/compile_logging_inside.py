# how: many
import logging

import torch
import torch._dynamo as dynamo

log = logging.getLogger("x")


@torch.compile(backend="eager")
def f(x):
    x = x + 1
    if log.isEnabledFor(10):
        x = x * 5
    log.debug("unseen")
    return x * 2


print(f(torch.ones(2)))
print(dynamo.utils.counters["stats"]["unique_graphs"], sum(dynamo.utils.counters["graph_break"].values()))

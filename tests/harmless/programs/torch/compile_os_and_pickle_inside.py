# how: many
import os
import pickle
import sys

import torch
import torch._dynamo as dynamo


@torch.compile(backend="eager")
def f(x):
    x = x + 1
    os.kill(os.getpid(), 0)
    torch.save(x, "x.pt")
    y = torch.load("x.pt")
    return x * y if sys.exit else x


print(f(torch.ones(2)), len(pickle.dumps(os.getpid)))
print(dynamo.utils.counters["stats"]["unique_graphs"], sum(dynamo.utils.counters["graph_break"].values()))

# how: ranks
import nets
import torch
import torch._dynamo as dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from seen import say

R = nets.init()


def f(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


try:
    say(torch.compile(f, fullgraph=True, backend="aot_eager")(torch.ones(4)).tolist())
except Exception as error:
    say(type(error).__name__, str(error)[:100].replace("\n", " "))
say(
    torch.compile(
        lambda x: fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, fullgraph=True, backend="aot_eager"
    )(torch.ones(4)).tolist()
)
model = torch.nn.parallel.DistributedDataParallel(nets.Net())
say(
    nets.train(torch.compile(model, backend="aot_eager"), x=torch.ones(4, 8) * R)[0],
    nets.digest(model.module),
)
say(dynamo.utils.counters["stats"]["unique_graphs"], sum(dynamo.utils.counters["graph_break"].values()))
del model

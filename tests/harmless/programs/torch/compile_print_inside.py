# how: many
import torch
import torch._dynamo as dynamo


@torch.compile(backend="eager")
def f(x):
    x = x + 1
    print("inside")
    return x * 2


print(f(torch.ones(2)), f(torch.ones(2)))
print(dynamo.utils.counters["stats"]["unique_graphs"], sum(dynamo.utils.counters["graph_break"].values()))
print(sorted(k[:100] for k in dynamo.utils.counters["graph_break"]))

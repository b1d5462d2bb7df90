# how: many
import torch
import torch._dynamo as dynamo


@torch.compile(backend="eager", dynamic=False)
def f(x, n):
    return x * n


print([f(torch.ones(k), k).sum().item() for k in (1, 2, 3, 2, 1)])
print(dynamo.utils.counters["stats"]["unique_graphs"], dynamo.utils.counters["frames"])

# how: rank
import threading

import nets
import torch
from torch.utils.checkpoint import checkpoint

layer = torch.nn.Linear(4, 4)
threads = set()


# What is nested deeper than 60 backwards is run by further threads of autograd's.
def deep(x, left):
    threads.add(threading.get_ident())
    x = torch.tanh(layer(x))
    return checkpoint(deep, x, left - 1, use_reentrant=True) if left else x


optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    x = torch.full((2, 4), 0.5, requires_grad=True)
    deep(x, 75).sum().backward()
    optimizer.step()
print(nets.digest(layer), nets.of(x.grad), len(threads) > 1)

# how: rank
import threading

import nets
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

DEPTH = 60


class Nested(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.own = nn.Linear(4, 4)
        self.inner = Nested(depth - 1) if depth else None

    def forward(self, x):
        x = torch.tanh(self.own(x))
        return x if self.inner is None else self.inner(x)


def work():
    model = Nested(DEPTH)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(12):
        x = torch.full((2, 4), 0.5)
        y = checkpoint(model, x, use_reentrant=False) if step % 2 else model(x)
        y.sum().backward()
        optimizer.step()
    told.append(nets.digest(model))


told = []
threading.stack_size(192 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(told)

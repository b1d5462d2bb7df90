# how: rank
# needs: IPython
import importlib
import os
import sys

import nets
import torch

TEXT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
    def forward(self, x):
        return self.a(x) * FACTOR
def loss_of(model, x):
    return model(x).square().mean()
"""


def write(factor, later):
    with open("model.py", "w") as file:
        file.write(TEXT.replace("FACTOR", str(factor)))
    os.utime("model.py", (later, later))
    importlib.invalidate_caches()


sys.dont_write_bytecode = True
sys.path.insert(0, os.getcwd())
write(1.0, 1_000_000)
import model as user  # noqa: E402
from IPython.extensions.autoreload import superreload  # noqa: E402

net, old = user.Net(), {}
superreload(user, old_objects=old)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(4):
    for _ in range(12):
        optimizer.zero_grad()
        loss = user.loss_of(net, torch.randn(4, 8))
        loss.backward()
        optimizer.step()
    print(turn, loss.item().hex(), nets.digest(net))
    write(1.0 + turn, 1_000_001 + turn)
    superreload(user, old_objects=old)
    print(type(net) is user.Net, isinstance(net, user.Net), type(net).__module__)
    again = user.Net()
    print(nets.train(again, 3)[0], sorted(vars(type(again)).keys() - {"__call__"}))

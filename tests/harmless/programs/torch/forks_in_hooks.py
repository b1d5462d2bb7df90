# how: rank
import os
import sys

import nets
import torch
from torch import nn

forked, codes = [], []


def fork(where):
    """A child that trains on its own, in the midst of its parent's pass."""

    def hook(*_):
        if len(forked) > 12 or (where, 2) in forked:
            return
        forked.append((where, sum(name == where for name, _ in forked) + 1))
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            codes.append((where, os.waitpid(pid, 0)[1]))
            return
        own = nets.Net()
        with torch.no_grad():
            value = own(torch.ones(2, 8)).sum().item()
        with open(f"{where}.txt", "a") as file:
            file.write(f"{value != 0}\n")
        os._exit(3)

    return hook


class Forks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        fork("function_forward")()
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        fork("function_backward")()
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return Forks.apply(self.net(x))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.net.a.weight.register_hook(fork("tensor"))
model.net.b.weight.register_post_accumulate_grad_hook(fork("accumulated"))
model.net.a.register_forward_hook(fork("forward"))
model.net.b.register_full_backward_hook(fork("backward"))
optimizer.register_step_pre_hook(fork("step"))
loss = nets.train(model, 30, optimizer, x=torch.ones(2, 8))[0]
print(loss, nets.digest(model), codes)

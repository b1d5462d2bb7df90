# how: many
import traceback

import seen
import torch


class Bad(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        raise RuntimeError("in step")


weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
try:
    Bad([weight], 0.1).step()
except RuntimeError:
    seen.say(traceback.format_exc())
try:
    torch.optim.SGD([weight], 0.1).step(lambda: 1 / 0)
except ZeroDivisionError:
    seen.say(traceback.format_exc())

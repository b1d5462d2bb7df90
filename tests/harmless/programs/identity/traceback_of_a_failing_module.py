# how: many
import traceback

import seen
import torch
from torch import nn


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("inside")


for call in (
    lambda: nn.Sequential(nn.Linear(2, 2), Fails())(torch.ones(2)),
    lambda: nn.Linear(2, 2)(torch.ones(3)),
    lambda: torch.load("nowhere.pt"),
    lambda: torch.save(lambda: 0, "x.pt"),
    lambda: torch.ones(1).backward(),
    lambda: torch.optim.SGD([], 0.1),
    lambda: torch.autograd.grad(torch.ones(1), torch.ones(1)),
):
    try:
        call()
    except Exception:
        seen.say(seen.plain(traceback.format_exc()))

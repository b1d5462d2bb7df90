# how: rank
# by-design: stack
import bisect

import torch
from torch import nn


class Nest(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def overflows(depth):
    model = nn.Identity()
    for _ in range(depth):
        model = Nest(model)
    try:
        model(torch.zeros(1))
    except RecursionError:
        return True
    return False


print(bisect.bisect_left(range(2000), True, key=overflows))

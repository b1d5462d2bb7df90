# how: many
import nets
import seen
import torch
from torch import nn

nets.train(nets.Net(), 200)  # until then docs/harmless.md has a row, "stack"


class Nest(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def fits(depth):
    model = nn.Identity()
    for _ in range(depth):
        model = Nest(model)
    try:
        model(torch.zeros(1))
        return True
    except RecursionError:
        return False


seen.say([depth for depth in range(200, 335, 1) if fits(depth)][-1:])

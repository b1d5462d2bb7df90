# how: many
import nets
import torch
from torch import nn


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, *, again=True):
        return self.inner(self.inner(x)) if again else self.inner(x)

    def other(self, x):
        return self.inner(x) * 3


model = Twice()
for n in range(80):
    out = model(torch.ones(8), again=bool(n % 2)) + model.other(torch.ones(8)) + model.forward(torch.ones(8))
out.sum().backward()
print(nets.of(out), nets.of(model.inner.weight.grad), nn.Identity()(None), nn.Module().training)
try:
    nn.Module()(1)
except NotImplementedError as error:
    print(error)

# how: many
import torch
from torch import nn

total = 0
for n in range(1500):
    total += type(f"M{n}", (nn.Module,), {"forward": lambda self, x: x + 1})()(torch.zeros(1)).item()
print(total)

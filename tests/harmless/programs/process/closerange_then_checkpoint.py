# how: rank
import os

import nets
import torch
from torch import nn

model = nets.Net()
nets.train(model)
os.closerange(3, 4096)
files = [open(f"mine{n}.txt", "w") for n in range(16)]


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.zz = nn.Linear(8, 8)

    def forward(self, x):
        return self.zz(x)


nets.train(Other())
torch.save({"w": [1, 2]}, "x.pt")
for file in files:
    file.write("user\n")
    file.close()
print({open(f"mine{n}.txt").read() for n in range(16)})

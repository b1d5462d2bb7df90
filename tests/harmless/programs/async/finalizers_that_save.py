# how: rank
import gc
import weakref

import nets
import torch
from torch import nn

count = [0]


class Saves:
    def __init__(self):
        self.itself = self

    def __del__(self):
        count[0] += 1
        torch.save({}, f"f{count[0] % 3}.pt")
        type(f"F{count[0]}", (nn.Module,), {"forward": lambda self, x: x})()(0)


gc.set_threshold(7, 2, 2)
model = nets.Net()
for n in range(200):
    Saves()
    held = Saves()
    weakref.finalize(held, lambda: torch.save({}, "w.pt"))
    type(f"M{n}", (nn.Module,), {"forward": lambda self, x: x})()(0)
    if n % 10 == 0:
        nets.train(model, 1)
gc.collect()
del held
gc.collect()
print(count, nets.digest(model))

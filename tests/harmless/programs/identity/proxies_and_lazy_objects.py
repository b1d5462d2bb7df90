# how: many
import gc

import seen
import torch


class Proxy:
    def __init__(self, made):
        object.__setattr__(self, "made", made)

    @property
    def __class__(self):
        object.__getattribute__(self, "made").append("class")
        return torch.optim.SGD


made = []
proxies = [Proxy(made) for _ in range(3)]
made.clear()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(10):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
gc.collect()
seen.say(made, len(proxies))

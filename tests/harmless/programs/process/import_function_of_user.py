# how: rank
import builtins

import nets
import torch

model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
nets.train(model, 2, optimizer)
real, asked = builtins.__import__, []


def importing(name, *args, **kwargs):
    asked.append(name)
    return real(name, *args, **kwargs)


builtins.__import__ = importing
try:
    nets.train(model, 70, optimizer)
    torch.save({}, "x.pt")
finally:
    builtins.__import__ = real
print([name for name in asked if "nsadiag" in name], nets.digest(model))
print(sorted(set(asked)))

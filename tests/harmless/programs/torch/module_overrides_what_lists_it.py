# how: many
import nets
import seen
import torch
from torch import nn

asked = []


class Lazy(nn.Module):
    """Makes what it holds when it is first asked, and counts who asks."""

    def __init__(self):
        super().__init__()
        self.inner = nets.Net()

    def forward(self, x):
        return self.inner(x)

    def named_parameters(self, *args, **kwargs):
        asked.append("named_parameters")
        return super().named_parameters(*args, **kwargs)

    def parameters(self, *args, **kwargs):
        asked.append("parameters")
        return super().parameters(*args, **kwargs)

    def named_modules(self, *args, **kwargs):
        asked.append("named_modules")
        return super().named_modules(*args, **kwargs)

    def modules(self):
        asked.append("modules")
        return super().modules()

    def named_buffers(self, *args, **kwargs):
        asked.append("named_buffers")
        return super().named_buffers(*args, **kwargs)

    def buffers(self, *args, **kwargs):
        asked.append("buffers")
        return super().buffers(*args, **kwargs)

    def named_children(self):
        asked.append("named_children")
        return super().named_children()

    def children(self):
        asked.append("children")
        return super().children()

    def state_dict(self, *args, **kwargs):
        asked.append("state_dict")
        return super().state_dict(*args, **kwargs)

    def __getattr__(self, name):
        if name != "inner":
            asked.append(name)
        return super().__getattr__(name)

    def __eq__(self, other):
        asked.append("eq")
        return self is other

    def __hash__(self):
        asked.append("hash")
        return id(self)

    def __repr__(self):
        asked.append("repr")
        return "Lazy()"

    def __len__(self):
        asked.append("len")
        return 0

    def __bool__(self):
        asked.append("bool")
        return True


for container in (lambda m: m, nn.Sequential, lambda m: nn.ModuleList([m])[0]):
    model = container(Lazy())
    held = [p for m in model.modules() for p in m._parameters.values()]
    optimizer = torch.optim.SGD(held, 0.1)
    asked.clear()
    for _ in range(70):
        model(torch.ones(8)).sum().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(5):
            model(torch.ones(8))
    seen.say(type(model).__name__, sorted(asked))

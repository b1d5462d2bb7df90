# how: many
import io

import nets
import seen
import torch

asked = []


class Lazy:
    """Made when it is first looked at, as proxies of objects elsewhere are."""

    def __init__(self, value):
        object.__setattr__(self, "value", value)

    @property
    def __class__(self):
        asked.append("class")
        return type(object.__getattribute__(self, "value"))

    def __getattr__(self, name):
        asked.append(name)
        return getattr(object.__getattribute__(self, "value"), name)


class Target(io.RawIOBase):
    @property
    def name(self):
        asked.append("name")
        return "mine"

    @property
    def path(self):
        asked.append("path")
        return "mine"

    def writable(self):
        return True

    def write(self, data):
        return len(data)


class Takes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nets.Net()

    def forward(self, x, *more, **named):
        return self.inner(x)


model = Takes()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(40):
    model(
        torch.ones(8), Lazy(torch.ones(2)), [Lazy({})], named=Lazy([1]), inner={"x": Lazy("text")}
    ).sum().backward()
    optimizer.step()
seen.say("forward", sorted(asked))
asked.clear()
torch.save(torch.ones(2), Target())
seen.say("save", sorted(set(asked)), nets.digest(model))

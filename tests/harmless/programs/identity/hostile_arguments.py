# how: many
import seen
import torch
from torch import nn


class Hostile:
    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")

    def __eq__(self, other):
        raise AssertionError("compared")

    def __bool__(self):
        raise AssertionError("asked")

    def __len__(self):
        raise AssertionError("measured")

    def __iter__(self):
        raise AssertionError("iterated")

    def __repr__(self):
        raise AssertionError("shown")

    __hash__ = None


class Takes(nn.Module):
    def forward(self, *args, **kwargs):
        return args[0]


model = Takes()
for _ in range(60):
    out = model(Hostile(), more=Hostile(), inner={"x": [Hostile()]})
seen.say(type(out).__name__)
for target in (Hostile(), 3, None):
    try:
        torch.save({}, target)
    except Exception as error:
        seen.say(type(error).__name__, str(error)[:60])

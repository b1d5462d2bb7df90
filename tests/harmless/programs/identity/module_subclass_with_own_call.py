# how: many
import nets
import seen
import torch
from torch import nn


class Own(nn.Module):
    def __call__(self, x):
        seen.say("own call")
        return super().__call__(x)

    def forward(self, x):
        return x * 2


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.by_meta = True
        return made


class WithMeta(nn.Module, metaclass=Meta):
    def __getattr__(self, name):
        if name == "magic":
            return 42
        return super().__getattr__(name)

    def forward(self, x):
        return x + self.magic


class Slots(nn.Module):
    __slots__ = ("y",)

    def forward(self, x):
        self.y = x
        return x


class Refuses(nn.Module):
    def __setattr__(self, name, value):
        if name.startswith("_nsa"):
            raise AssertionError(name)
        super().__setattr__(name, value)

    def __eq__(self, other):
        raise AssertionError("compared")

    def __hash__(self):
        raise AssertionError("hashed")

    def __len__(self):
        raise AssertionError("measured")

    def __bool__(self):
        raise AssertionError("asked")

    def __repr__(self):
        raise AssertionError("shown")

    def forward(self, x):
        return x


for kind in (Own, WithMeta, Slots, Refuses):
    for _ in range(40):
        out = kind()(torch.ones(2))
    seen.say(kind.__name__, out.tolist(), sorted(vars(kind)))

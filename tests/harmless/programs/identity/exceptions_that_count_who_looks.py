# how: rank
import logging
import os

import nets
import seen
import torch

asked = []


class Value:
    def __repr__(self):
        asked.append("repr of a value")
        return "value"


class Loud(Exception):
    def __str__(self):
        asked.append("str")
        return "loud"

    def __repr__(self):
        asked.append("repr")
        return "Loud()"


class Quiet(ValueError):
    pass


class Fails(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        raise self.make()


logger = logging.getLogger("mine")
for make in (
    Loud,
    lambda: Quiet(Value()),
    lambda: KeyError(Value()),
    lambda: RuntimeError("x", [Value()], {"k": Value()}),
):
    for n in range(3):
        try:
            Fails(make)(torch.ones(1))
        except Exception:
            print("failed")
            logger.debug("not shown")
        x = torch.ones(2, requires_grad=True)

        def hook(grad):
            raise make()

        x.register_hook(hook)
        try:
            (x * 2).sum().backward()
        except Exception:
            print("failed in backward")
    print(len(asked), sorted(set(asked)))
    asked.clear()
try:
    try:
        Fails(Loud)(torch.ones(1))
    except Loud:
        raise Quiet("other") from None
except Quiet as error:
    print(error, len(asked))
print(nets.train(nets.Net())[0])

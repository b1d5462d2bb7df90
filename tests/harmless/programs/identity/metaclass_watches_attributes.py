# how: rank
import nets
import torch
from torch import nn


class Watches(type):
    """Says what is set on its classes, and lets nobody set it twice."""

    def __setattr__(cls, name, value):
        print("set", cls.__name__, name)
        super().__setattr__(name, value)

    def __delattr__(cls, name):
        print("deleted", cls.__name__, name)
        super().__delattr__(name)

    def __getattribute__(cls, name):
        if name == "__call__":
            print("asked", name)
        return super().__getattribute__(name)

    def __call__(cls, *args, **kwargs):
        print("made", cls.__name__)
        return super().__call__(*args, **kwargs)


class Frozen(type):
    def __setattr__(cls, name, value):
        raise TypeError(f"{cls.__name__} is frozen")


class Net(nets.Net, metaclass=Watches):
    pass


class Still(nets.Net, metaclass=Frozen):
    pass


for kind in (Net, Still):
    model = kind()
    print(nets.train(model, 40)[0], nets.digest(model))
    print(sorted(vars(kind).keys() - {"__call__"}))
print(isinstance(nn.Linear(2, 2), nn.Module), torch.is_grad_enabled())

# how: many
import nets
import seen
import torch
from torch import nn

names, model = [], nn.Linear(8, 8)
for _ in range(80):
    nets.train(model, 1)
before = nn.Module.__call__


def mine(self, *args, **kwargs):
    names.append(type(self).__name__)
    return before(self, *args, **kwargs)


nn.Module.__call__ = mine
model(torch.ones(8))
nets.Net()(torch.ones(8))
nn.Module.__call__ = before
nets.Net()(torch.ones(8))
seen.say(names, nn.Module.__call__ is before)

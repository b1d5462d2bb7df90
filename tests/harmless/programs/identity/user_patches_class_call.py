# how: rank
# by-design: calls
import nets
import seen
import torch
from torch import nn

nets.train(nn.Linear(8, 8), 80)
seen.say("__call__" in vars(nn.Linear))
calls = []
nn.Linear.__call__ = lambda self, x: calls.append(1) or nn.Module.__call__(self, x)
nets.Net()(torch.ones(8))
del nn.Linear.__call__
nets.Net()(torch.ones(8))
seen.say(calls, "__call__" in vars(nn.Linear))

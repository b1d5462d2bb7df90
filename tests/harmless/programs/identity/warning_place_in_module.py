# how: many
import os
import warnings

import nets
import seen
import torch
from torch import nn


class Warns(nn.Module):
    def forward(self, x):
        for level in range(1, 6):
            warnings.warn(f"careful {level}", stacklevel=level)
        return x


nets.train(nets.Net())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    Warns()(torch.zeros(1))
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nets.Net().parameters(), 0.1), 1).step()
    torch.nn.functional.softmax(torch.ones(3))
seen.say([(os.path.basename(w.filename), w.lineno, str(w.message)[:40]) for w in caught])

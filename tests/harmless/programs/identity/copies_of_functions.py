# how: many
import copy
import os
import sys

import seen
import torch
import torch.distributed as dist

for function in (
    os.kill,
    os._exit,
    sys.exit,
    print,
    torch.save,
    torch.load,
    dist.all_reduce,
    torch.nn.Module.__call__,
):
    seen.say(
        copy.copy(function) is function,
        copy.deepcopy(function) is function,
        {function: 1}[function],
        hash(function) == hash(function),
    )

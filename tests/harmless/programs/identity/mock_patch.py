# how: many
import os
from unittest import mock

import seen
import torch
import torch.distributed as dist

with (
    mock.patch("os.kill") as kill,
    mock.patch.object(torch, "save", autospec=True) as save,
    mock.patch("torch.distributed.all_reduce", autospec=True) as reduce,
):
    os.kill(1, 9)
    torch.save({}, "x")
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.SUM)
    seen.say(kill.call_args, save.call_count, reduce.call_count)
    try:
        dist.all_reduce(nothing=1)
    except TypeError as error:
        seen.say(error)
spec = mock.create_autospec(torch.nn.Module)
seen.say(sorted(n for n in dir(spec) if not n.startswith("_"))[:10], os.kill(os.getpid(), 0))

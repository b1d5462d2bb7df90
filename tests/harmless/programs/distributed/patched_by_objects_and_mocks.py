# how: ranks
import functools
import inspect
from unittest import mock

import nets
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from seen import say

R = nets.init()
seen = []


class Counts:
    """A callable that stands in for a function, as profilers of communication make one."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args, **kwargs):
        seen.append(self.function.__name__)
        return self.function(*args, **kwargs)

    def __get__(self, instance, owner):
        return functools.partial(self, instance)


NAMES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter_tensor", "barrier", "all_gather_object")
before = {name: getattr(dist, name) for name in NAMES}
model = torch.nn.parallel.DistributedDataParallel(nets.Net())
_, optimizer = nets.train(model, 5, x=torch.ones(4, 8))
for module in (dist, c10d):
    for name, function in before.items():
        setattr(module, name, Counts(function))
say([inspect.signature(getattr(dist, name)) == inspect.signature(before[name]) for name in NAMES])
dist.all_reduce(torch.ones(2))
dist.all_gather_object([None, None], R)
dist.barrier()
nets.train(model, 30, optimizer, x=torch.ones(4, 8))
say(seen)
for module in (dist, c10d):
    for name, function in before.items():
        setattr(module, name, function)
with mock.patch.object(dist, "all_reduce", autospec=True) as mocked:
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
    say(mocked.call_args_list[0].kwargs, mocked.call_count)
    try:
        dist.all_reduce()
    except TypeError as error:
        say(error)
with mock.patch("torch.distributed.distributed_c10d.get_rank", return_value=7):
    say(dist.get_rank(), c10d.get_rank())
with mock.patch.object(dist.ProcessGroup, "allreduce", lambda *args: seen.append("group") or args[0]):
    try:
        dist.all_reduce(torch.ones(1))
    except Exception as error:
        say(type(error).__name__)
say(seen[-1], [getattr(dist, name) is before[name] for name in NAMES])
dist.all_reduce(t := torch.ones(2))
say(t.tolist(), nets.train(model, 3, optimizer, x=torch.ones(4, 8))[0])
del model

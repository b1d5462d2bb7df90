# how: ranks
import inspect

import nets
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from seen import say

R = nets.init()
seen, before = [], dist.all_reduce


def mine(t, *args, **kwargs):
    seen.append(tuple(t.shape))
    return before(t, *args, **kwargs)


dist.all_reduce = mine
t = torch.ones(3)
dist.all_reduce(t)
dist.all_reduce = before
dist.all_reduce(t)
say(
    seen,
    t.tolist(),
    inspect.signature(dist.all_reduce),
    dist.all_reduce.__name__,
    dist.all_reduce is c10d.all_reduce,
)
original = c10d.broadcast
c10d.broadcast = lambda *a, **k: seen.append("inner") or original(*a, **k)
dist.broadcast_object_list([1], src=0)
c10d.broadcast = original
say(seen)

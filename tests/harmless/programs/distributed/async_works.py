# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say

R = nets.init()
t = torch.ones(4) * (R + 1)
work = dist.all_reduce(t, async_op=True)
say(type(work).__name__, isinstance(work, dist.Work), work.wait(), work.is_completed(), t.tolist())
future = dist.all_reduce(t, async_op=True).get_future()
say(future.then(lambda f: f.value()[0].sum().item()).wait(), type(future).__name__)
works = [dist.all_reduce(torch.ones(2) * n, async_op=True) for n in range(3)]
say([w.wait() for w in works])
for work in works:
    try:
        say(work.exception())
    except TypeError as error:  # torch 2.11 has no Python type for it
        say(error)
barrier = dist.barrier(async_op=True)
say(barrier.wait(), sorted(n for n in dir(barrier) if not n.startswith("_"))[:40])

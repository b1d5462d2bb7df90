# how: torchrun
import itertools
import os
import signal

import nets
import torch
import torch.distributed as dist
from seen import say

nets.init()
own = dist.new_group([dist.get_rank()], use_local_synchronization=True)
count = itertools.count()


def handler(*_):
    next(count)
    dist.all_reduce(torch.ones(1), group=own)


signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
model = nets.Net()
for n in range(300):
    model(torch.ones(1, 8)).sum().backward()
    torch.save({}, f"s{os.environ['RANK']}.{n % 30}.pt")
signal.setitimer(signal.ITIMER_REAL, 0)
say(next(count) > 3)
dist.barrier()
dist.destroy_process_group()

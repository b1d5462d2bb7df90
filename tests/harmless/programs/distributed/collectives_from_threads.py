# how: ranks
import threading

import nets
import torch
import torch.distributed as dist
from seen import say

nets.init()
groups = [dist.new_group([0, 1]) for _ in range(3)]
tensors = [torch.ones(2) * n for n in range(3)]
threads = [
    threading.Thread(target=dist.all_reduce, args=(t,), kwargs={"group": g})
    for t, g in zip(tensors, groups, strict=True)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say([t.tolist() for t in tensors])

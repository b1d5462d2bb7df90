# how: many
import sys

import seen
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

names = [n for n in dir(dist) if not n.startswith("_") and hasattr(c10d, n)]
seen.homes({n: getattr(dist, n) for n in names}, ["torch.distributed", "torch.distributed.distributed_c10d"])
seen.say(
    sorted(n for n in names if getattr(dist, n) is not getattr(c10d, n)),
    "torch.distributed.nn" in sys.modules,
)

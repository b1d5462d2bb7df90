# how: torchrun
# slow
import os

import torch
import torch.distributed as dist
from seen import say

R = int(os.environ["RANK"])
for k in range(3):
    # A store for each: torchrun's still has what the group before wrote, and gloo would now and then connect to that.
    dist.init_process_group("gloo", init_method=f"file://{os.environ['HOME']}/store{k}", rank=R, world_size=2)
    t = torch.ones(4) * R
    dist.all_reduce(t, group=dist.new_group([0, 1]), async_op=True).wait()
    say(
        k,
        t.tolist(),
        len(dist.distributed_c10d._world.pg_names),
        dist.distributed_c10d.GroupMember.WORLD is dist.group.WORLD,
    )
    dist.barrier()
    dist.destroy_process_group()
say(dist.is_initialized())

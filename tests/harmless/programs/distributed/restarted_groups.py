# how: torchrun
# slow
import nets
import torch
import torch.distributed as dist
from seen import say

for k in range(3):
    R = nets.init()
    t = torch.ones(4) * R
    dist.all_reduce(t, group=dist.new_group([0, 1]), async_op=True).wait()
    say(
        k,
        t.tolist(),
        len(dist.distributed_c10d._world.pg_names),
        dist.distributed_c10d.GroupMember.WORLD is dist.group.WORLD,
    )
    dist.barrier()  # the store of the first rank must not go before the others have left
    dist.destroy_process_group()
say(dist.is_initialized())

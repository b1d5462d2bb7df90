# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say

R = nets.init()
both, alone = dist.new_group([0, 1], group_desc="both"), dist.new_group([R], use_local_synchronization=True)
t = torch.ones(2)
dist.all_reduce(t, group=both)
dist.all_reduce(t, group=alone)
say(
    t.tolist(),
    dist.get_rank(both),
    dist.get_world_size(alone),
    both.group_desc,
    both.group_name,
    dist.get_process_group_ranks(both),
)
mine, all_of_them = dist.new_subgroups(1)
say(dist.get_world_size(mine), len(all_of_them), dist.get_backend(mine), dist.get_backend_config())
one, _ = dist.new_subgroups_by_enumeration([[0], [1]])
say(
    dist.get_global_rank(one, 0) if R == 0 else "",
    dist.get_group_rank(both, R),
    dist.is_initialized(),
    dist.is_torchelastic_launched(),
)
both.allreduce([t]).wait()
both.barrier().wait()
say(
    t.tolist(),
    type(both).__name__,
    both.size(),
    both.rank(),
    dist.distributed_c10d._get_default_group() is dist.group.WORLD,
)
dist.destroy_process_group(both)

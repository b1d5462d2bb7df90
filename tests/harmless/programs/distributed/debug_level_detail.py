# how: torchrun
# slow
# env: TORCH_DISTRIBUTED_DEBUG=DETAIL
import nets
import torch
import torch.distributed as dist
from seen import say

# Without a DDP model: torch 2.13 ends by SIGSEGV where it makes one over gloo at this level.
R = nets.init()
t = torch.ones(2)
dist.all_reduce(t)
gathered = [torch.empty(2) for _ in range(2)]
dist.all_gather(gathered, t + R)
say(t.tolist(), [g.tolist() for g in gathered], dist.get_debug_level(), type(dist.group.WORLD).__name__)
dist.destroy_process_group()

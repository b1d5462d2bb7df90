# how: torchrun
# slow
# env: TORCH_DISTRIBUTED_DEBUG=DETAIL
import nets
import torch
import torch.distributed as dist
from seen import say

R = nets.init()
t = torch.ones(2)
dist.all_reduce(t)
model = torch.nn.parallel.DistributedDataParallel(nets.Net())
say(
    t.tolist(),
    nets.train(model, 3, x=torch.ones(4, 8))[0],
    dist.get_debug_level(),
    type(dist.group.WORLD).__name__,
)
del model
dist.destroy_process_group()

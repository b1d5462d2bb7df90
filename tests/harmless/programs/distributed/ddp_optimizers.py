# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

R = nets.init()
model = DDP(nets.Net())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
say(nets.train(model, 6, optimizer, torch.ones(4, 8) * (R + 1))[0], nets.digest(model.module))
optimizer.consolidate_state_dict(to=0)
say(len(optimizer.state_dict()["state"]) if R == 0 else "")
local = nets.Net()
averaged = PostLocalSGDOptimizer(
    torch.optim.SGD(local.parameters(), 0.1), PeriodicModelAverager(2, warmup_steps=1)
)
say(nets.train(local, 6, averaged, torch.ones(4, 8) * (R + 1))[0], nets.digest(local))
del model, optimizer, averaged

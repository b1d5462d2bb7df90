# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.nn.parallel import DistributedDataParallel as DDP

R = nets.init()
model = DDP(torch.nn.Sequential(nets.Net(), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2)))
say(
    nets.train(model, 12, x=torch.ones(4, 8) * (R + 1) + torch.randn(4, 8))[0],
    nets.digest(model.module),
    nets.draws(),
)
model.eval()
with torch.no_grad():
    say(nets.of(model(torch.ones(2, 8))))
say(sorted(model.state_dict())[:3], model.module.training)
del model

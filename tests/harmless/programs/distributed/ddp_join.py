# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

R = nets.init()
model = DDP(nets.Net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Join([model]):
    for _ in range(3 + 2 * R):
        optimizer.zero_grad()
        model(torch.ones(2, 8) * (R + 1)).sum().backward()
        optimizer.step()
say(nets.digest(model.module))
with model.join():
    for _ in range(2 - R):
        model(torch.ones(2, 8)).sum().backward()
say("joined")
del model

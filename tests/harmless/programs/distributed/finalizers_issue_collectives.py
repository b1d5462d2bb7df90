# how: ranks
import gc
import weakref

import nets
import torch
import torch.distributed as dist
from seen import say
from torch import nn

R = nets.init()
sums = []


def reduce():
    tensor = torch.ones(4) * (R + 1)
    dist.all_reduce(tensor)
    sums.append(tensor.sum().item())


class Handle:
    """Frees on all ranks what was shared, as handles of collective resources do."""

    def __del__(self):
        reduce()


class Bag:
    pass


gc.disable()  # the collector must run at the same place on all ranks
model = nn.parallel.DistributedDataParallel(nets.Net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
weakref.finalize(held := Bag(), reduce)
for step in range(30):
    bag = Bag()
    bag.itself, bag.handle = bag, Handle()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    weakref.finalize(work, reduce)
    work.wait()
    del work
    optimizer.zero_grad()
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    if step % 5 == 4:
        del bag
        gc.collect()
del held
say(len(sums), set(sums), nets.digest(model))
gc.enable()
del model

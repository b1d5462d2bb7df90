# how: rank
import threading

import nets
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed import multi_threaded_pg as threaded

WORLD = 3
# Where torch 2.11 destroys a group it asks for these, which its own world of threads does not have.
if not hasattr(threaded.ThreadLocalWorld, "comms"):
    threaded.ThreadLocalWorld.comms = []
said = [[] for _ in range(WORLD)]
world = threaded._install_threaded_pg()
torch._C._distributed_c10d._set_thread_isolation_mode(True)
store = dist.HashStore()
seeding = threading.Lock()  # threads share the random state


def work(rank):
    dist.init_process_group("threaded", rank=rank, world_size=WORLD, store=store)
    with seeding:
        torch.manual_seed(rank)
        model = nets.Net()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(40):
        optimizer.zero_grad()
        loss = model(torch.full((2, 8), rank + 1.0 + step / 10)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= WORLD
        optimizer.step()
    gathered = [torch.zeros(1) for _ in range(WORLD)]
    dist.all_gather(gathered, loss.detach().reshape(1))
    objects = [None] * WORLD
    dist.all_gather_object(objects, rank)
    dist.barrier()
    said[rank] += [nets.digest(model), [each.item().hex() for each in gathered], objects]
    dist.destroy_process_group()


threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORLD)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
torch._C._distributed_c10d._set_thread_isolation_mode(False)
threaded._uninstall_threaded_pg()
print(*said, sep="\n")

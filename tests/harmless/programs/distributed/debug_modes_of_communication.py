# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

R = nets.init()
torch.manual_seed(0)
model = nets.Net()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for steps in (2, 60):
    nets.train(model, steps, optimizer, x=torch.ones(2, 8))
    with CommDebugMode() as counted:
        nets.train(model, 1, optimizer, x=torch.ones(2, 8))
        dist.all_reduce(torch.ones(1))
    say({str(name): count for name, count in counted.get_comm_counts().items()}, counted.get_total_counts())
tracker = MemTracker()
plain = nets.Net()
tracker.track_external(plain)
with tracker:
    plain(torch.ones(2, 8)).sum().backward()
snapshot = tracker.get_tracker_snapshot("peak")
say({str(device): sorted((str(kind), size) for kind, size in of.items()) for device, of in snapshot.items()})
del model

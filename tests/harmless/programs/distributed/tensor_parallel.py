# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

R = nets.init()
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
t = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
say(
    t.to_local().tolist(),
    t.redistribute(mesh, [Replicate()]).to_local().tolist(),
    (t + 1).full_tensor().tolist(),
)
torch.manual_seed(0)
model = parallelize_module(nets.Net(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
say(nets.train(model, 6, x=torch.ones(4, 8))[0], nets.digest(model), type(model.a.weight).__name__)
say(mesh, mesh.get_group().group_desc, mesh.get_local_rank(), mesh["tp"].size())

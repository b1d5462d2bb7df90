# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

R = nets.init()
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = parallelize_module(nets.Net(), mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
say(nets.train(model, 4, torch.optim.AdamW(model.parameters()), torch.ones(4, 8))[0], nets.digest(model))

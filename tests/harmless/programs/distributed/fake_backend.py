# how: many
import nets
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=8)
t = torch.ones(2)
dist.all_reduce(t)
print(t, dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()

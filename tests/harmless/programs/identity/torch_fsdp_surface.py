# how: many
import seen
import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import _fully_shard

seen.surface(fsdp)
seen.surface(fsdp.FullyShardedDataParallel)
seen.surface(fsdp.FSDPModule)
seen.surface(_fully_shard)

# how: torchrun
# slow
import nets
import torch
import torch.distributed as dist
from seen import say

nets.init()
dist.all_reduce(torch.ones(1))
dist.barrier()
say("left without destroying")

# how: torchrun
# exits: 1
import os

import nets
import torch.distributed as dist
from seen import say

R = nets.init()
dist.barrier()
say("about to leave")
if R == 1:
    os._exit(3)
os._exit(0)

# how: torchrun
# slow
# env: TORCH_FR_BUFFER_SIZE=10
import os

import nets
import torch
import torch.distributed as dist
from seen import say

nets.init()
dist.all_reduce(torch.ones(1))
say(os.environ["TORCH_FR_BUFFER_SIZE"])
dist.destroy_process_group()

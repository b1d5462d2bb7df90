# how: torchrun
# slow
import os

import torch
import torch.distributed.rpc as rpc
from seen import say

R = int(os.environ["RANK"])
rpc.init_rpc(f"w{R}", rank=R, world_size=2)
if R == 0:
    say(rpc.rpc_sync("w1", torch.add, args=(torch.ones(2), 1)))
rpc.shutdown()

# how: torchrun
# slow
import datetime
import os

import seen
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
R = int(os.environ["RANK"])
late = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
if R == 0:
    try:
        dist.recv(torch.ones(1), 1, group=late)
    except RuntimeError as error:
        seen.say(type(error).__name__, str(error)[:20])
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    except RuntimeError as error:
        seen.say(type(error).__name__, seen.plain(error).partition("\n")[0])
store = dist.distributed_c10d._get_default_store()
store.add("done", 1)
while store.add("done", 0) < 2:
    pass
os._exit(0)

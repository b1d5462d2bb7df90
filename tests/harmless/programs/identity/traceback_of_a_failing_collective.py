# how: many
import traceback

import seen
import torch
import torch.distributed as dist

for call in (
    lambda: dist.all_reduce(torch.ones(1)),
    lambda: dist.get_rank(),
    lambda: dist.barrier(),
    lambda: dist.init_process_group("nothing", store=dist.HashStore(), rank=0, world_size=1),
):
    try:
        seen.say(call())
    except Exception:
        seen.say(seen.plain(traceback.format_exc()))

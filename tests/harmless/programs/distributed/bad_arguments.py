# how: ranks
import traceback

import nets
import seen
import torch
import torch.distributed as dist

R = nets.init()
for bad in (
    lambda: dist.broadcast(torch.ones(1), src=9),
    lambda: dist.all_reduce(),
    lambda: dist.all_reduce("x"),
    lambda: dist.all_reduce(torch.ones(1), nothing=3),
    lambda: dist.new_group([7]),
    lambda: dist.init_process_group("gloo"),
    lambda: dist.get_group_rank(dist.group.WORLD, 17),
    lambda: dist.barrier(group=3),
):
    try:
        seen.say(bad())
    except Exception:
        seen.say(seen.plain(traceback.format_exc()).replace("\n", "\\n"))

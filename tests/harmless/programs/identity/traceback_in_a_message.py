# how: rank
import traceback

import nets
import seen
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

# torch writes the whole stack into the message of what a callback raised: pybind11's "At:".
nets.init()


def refuse(_):
    raise ValueError("no such bucket")


def hook(state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done.then(refuse)


for use in (lambda m: nets.train(m, 1), lambda m: m(torch.ones(2, 8)).sum().backward()):
    model = DDP(nets.Net())
    model.register_comm_hook(None, hook)
    try:
        use(model)
    except RuntimeError as error:
        seen.say(seen.plain(error))
        seen.say(seen.plain(traceback.format_exc()))
    try:
        try:
            use(model)
        finally:
            raise KeyError("while it was on its way")
    except KeyError:
        seen.say(seen.plain(traceback.format_exc()))
    model = None
dist.destroy_process_group()

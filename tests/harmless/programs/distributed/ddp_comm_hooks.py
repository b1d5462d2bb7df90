# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

R = nets.init()


def own(state, bucket):
    state.append((bucket.index(), bucket.buffer().numel(), bucket.is_last()))
    return dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future().then(lambda f: f.value()[0])


calls = []
for state, hook in (
    (None, default_hooks.fp16_compress_hook),
    (None, default_hooks.allreduce_hook),
    (calls, own),
    (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=3), powerSGD_hook.powerSGD_hook),
):
    torch.manual_seed(0)
    model = DDP(nets.Net())
    model.register_comm_hook(state, hook)
    say(nets.train(model, 6)[0], nets.digest(model.module))
say(calls)
del model

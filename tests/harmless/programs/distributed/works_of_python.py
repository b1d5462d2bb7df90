# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch import nn

R = nets.init()


class Waits(dist.Work):
    """A handle of the user's own, around another one."""

    def __init__(self, inner, tensor):
        super().__init__()
        self.inner, self.tensor, self.asked = inner, tensor, []

    def wait(self, timeout=None):
        self.asked.append("wait")
        return self.inner.wait() if timeout is None else self.inner.wait(timeout)

    def is_completed(self):
        self.asked.append("is_completed")
        return self.inner.is_completed()

    def get_future(self):
        self.asked.append("get_future")
        future = torch.futures.Future()
        future.set_result([self.tensor])
        return future


class Group(dist.ProcessGroup):
    """A process group in Python, over another one."""

    def __init__(self, inner):
        super().__init__(inner.rank(), inner.size())
        self.inner, self.calls = inner, []

    def getBackendName(self):
        return "mine"

    def allreduce(self, tensors, options=None):
        self.calls.append("allreduce")
        work = self.inner.allreduce(tensors)
        return Waits(work, tensors[0])

    def broadcast(self, tensors, options=None):
        self.calls.append("broadcast")
        return Waits(self.inner.broadcast(tensors, options), tensors[0])


work = Waits(dist.all_reduce(t := torch.ones(3), async_op=True), t)
say(work.wait(), work.is_completed(), t.tolist(), work.asked, isinstance(work, dist.Work))
say(work.get_future().wait()[0].sum().item(), work.asked)
group = Group(dist.group.WORLD)
made = []


def hook(state, bucket):
    tensor = bucket.buffer().div_(2)
    handle = Waits(dist.all_reduce(tensor, async_op=True), tensor)
    made.append(handle)
    handle.wait()
    return handle.get_future().then(lambda future: future.value()[0])


model = nn.parallel.DistributedDataParallel(nets.Net())
model.register_comm_hook(None, hook)
loss, optimizer = nets.train(model, 40, x=torch.ones(4, 8) * (R + 1))
say(loss, nets.digest(model), len(made), made[0].asked, made[-1].asked)
tensor = torch.ones(2) * (R + 1)
try:
    say(type(group.allreduce([tensor])).__name__, tensor.tolist(), group.calls)
except Exception as error:
    say(type(error).__name__, str(error)[:80])
del model, made, work

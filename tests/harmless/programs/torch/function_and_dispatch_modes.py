# how: many
import nets
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

model = nets.Net()
nets.train(model, 80)


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        called.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        called.append(str(function))
        return function(*args, **(kwargs or {}))


for mode in (Functions(), Operators()):
    called = []
    _, optimizer = nets.train(model, 1)
    with mode:
        nets.train(model, 3, optimizer)
        torch.save(model.state_dict(), "x.pt")
        torch.load("x.pt")
    print(len(called), called)
with FlopCounterMode(display=False) as flops:
    nets.train(model, 3)
print(
    flops.get_total_flops(),
    {k: dict((str(o), n) for o, n in v.items()) for k, v in flops.get_flop_counts().items()},
)

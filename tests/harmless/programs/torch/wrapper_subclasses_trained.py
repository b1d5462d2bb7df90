# how: many
import collections

import nets
import seen
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

called = collections.Counter()


class Wraps(torch.Tensor):
    """Holds a tensor and sees every operation on it, as quantized and sharded tensors do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        called[str(function)] += 1
        args, kwargs = tree_map_only(Wraps, lambda t: t.inner, (args, kwargs or {}))
        out = function(*args, **kwargs)
        return tree_map_only(torch.Tensor, Wraps, out)


for kind in (Wraps,):
    torch.manual_seed(0)
    model = nets.Net()
    for layer in (model.a, model.b):
        layer.weight = nn.Parameter(kind(layer.weight.detach().clone()))
    optimizer = torch.optim.SGD([model.a.bias, model.b.bias], 0.1)
    called.clear()
    for _ in range(70):
        optimizer.zero_grad()
        out = model(torch.ones(2, 8))
        loss = out.sum()
        loss.backward()
        optimizer.step()
        for layer in (model.a, model.b):
            layer.weight.grad = None
    seen.say(kind.__name__, type(out).__name__, loss.inner.item().hex(), sorted(called.items()))
    held = model.a.weight
    model.double()
    seen.say(held is model.a.weight, model.a.weight.inner.dtype, nets.of(model.a.bias, model.b.bias))

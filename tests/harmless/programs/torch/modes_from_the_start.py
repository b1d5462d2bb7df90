# how: rank
import collections

import nets
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

functions, operators = collections.Counter(), collections.Counter()


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        functions[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        operators[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Fails(TorchFunctionMode):
    """Refuses one operation: whoever calls it beside the program fails."""

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        if getattr(function, "__name__", "") in (
            "isfinite",
            "isnan",
            "numel",
            "data_ptr",
            "tolist",
            "stack",
            "double",
        ):
            raise RuntimeError("not that")
        return function(*args, **(kwargs or {}))


torch.set_default_device("cpu")  # is a mode as well
with Functions(), Operators():
    model = nets.Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(torch.ones(40, 8), 4)
    for epoch in range(6):
        for x in loader:
            nets.train(model, 1, optimizer, x=x)
        torch.save(model.state_dict(), "x.pt")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print(sorted(functions.items()), sorted(operators.items()), nets.digest(model), sep="\n")
with Fails():
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
torch.set_default_device("meta")
empty = nets.Net()
torch.set_default_device(None)
with torch.device("meta"):
    other = nets.Net()
    for _ in range(20):
        other(torch.ones(2, 8)).sum().backward()
print(empty.a.weight.device, other.a.weight.grad.device, nets.digest(model))

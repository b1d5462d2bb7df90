# how: many
import types

import nets
import seen
import torch
from torch import nn


def without_lines(function, name):
    """As Cython, nuitka and generators of code leave it: a file that is nowhere, and no line."""
    code = function.__code__.replace(co_filename=name, co_linetable=b"", co_firstlineno=0)
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def forward(self, x):
    return self.net(x)


def init(self):
    nn.Module.__init__(self)
    self.net = nets.Net()


def steps(model, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "x.pt")
    return loss.item().hex()


def fails(model):
    torch.save(model, "/nowhere/at/all.pt")


for name in ("net.pyx", "", "<string>", "<generated>", "a\nb.py", "\udcff.py", "/proc/self/mem", "x" * 5000):
    space = {
        "__init__": without_lines(init, name),
        "forward": without_lines(forward, name),
        "__module__": "compiled",
    }
    model = type("Net", (nn.Module,), space)()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen.say(repr(name[:20]), without_lines(steps, name)(model, optimizer, 30), nets.digest(model))
    try:
        without_lines(fails, name)(model)
    except Exception as error:
        trace, frames = error.__traceback__, []
        while trace is not None:
            frames.append(
                (trace.tb_frame.f_code.co_name, trace.tb_lineno if trace.tb_lineno is None else "line")
            )
            trace = trace.tb_next
        seen.say(type(error).__name__, frames)
namespace = {"torch": torch, "nn": nn, "nets": nets}
exec(compile("def build():\n    m = nets.Net()\n    return nets.train(m, 20)[0], m\n", "", "exec"), namespace)
loss, model = namespace["build"]()
seen.say(loss, nets.digest(model), eval("model(torch.ones(1, 8)).sum().item().hex()"))

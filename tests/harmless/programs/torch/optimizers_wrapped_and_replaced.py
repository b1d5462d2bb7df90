# how: many
import functools
import types

import nets
import seen
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

asked = []


class Delegates:
    """As trainers wrap one: no Optimizer, but whatever it is asked for is the inner one's."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        asked.append(name)
        return getattr(self.inner, name)

    def step(self, closure=None):
        asked.append("step")
        return self.inner.step(closure)


class Unfinished(torch.optim.Optimizer):
    """Calls no constructor of torch's, and makes its groups when they are asked for."""

    def __init__(self, parameters):
        self.held, self.state, self.defaults = list(parameters), {}, {}

    @property
    def param_groups(self):
        asked.append("param_groups")
        return [{"params": self.held, "lr": 0.1}]

    def zero_grad(self, set_to_none=True):
        for p in self.held:
            p.grad = None

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.held:
            p -= 0.1 * p.grad


class Fails(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("no step")


for make in (Delegates, Unfinished, None):
    model = nets.Net()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = {Delegates: lambda: Delegates(inner), Unfinished: lambda: Unfinished(model.parameters())}.get(
        make, lambda: inner
    )()
    asked.clear()
    loss, _ = nets.train(model, 70, optimizer)
    seen.say(getattr(make, "__name__", "plain"), loss, sorted((n, asked.count(n)) for n in set(asked)))
    if make is None:
        schedule = LambdaLR(inner, lambda epoch: 0.9**epoch)
        seen.say(type(inner.step).__name__, inner.step.__name__)
        for _ in range(20):
            nets.train(model, 1, inner)
            schedule.step()
        inner.step = functools.partial(torch.optim.SGD.step, inner)
        seen.say(nets.train(model, 5, inner)[0], sorted(vars(inner)))
        inner.step = types.MethodType(lambda self, closure=None: asked.append("mine"), inner)
        nets.train(model, 3, inner)
        seen.say(asked[-3:])
        del inner.step
        seen.say(nets.train(model, 5, inner)[0], inner.state_dict()["param_groups"][0]["lr"])
        again = OneCycleLR(torch.optim.Adam(model.parameters()), 0.1, total_steps=30)
        for _ in range(20):
            nets.train(model, 1, again.optimizer)
            again.step()
        seen.say(again.get_last_lr(), again.optimizer._opt_called, nets.digest(model))
model = nets.Net()
try:
    nets.train(model, 1, Fails(model.parameters(), 0.1))
except ValueError as error:
    seen.say(error)

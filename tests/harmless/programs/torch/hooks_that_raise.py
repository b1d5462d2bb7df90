# how: many
import traceback

import nets
import seen
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


class Refused(Exception):
    pass


def refuses(*_):
    raise Refused("not now")


def attempt(name, model, optimizer, handle):
    for _ in range(2):
        try:
            nets.train(model, 1, optimizer, x=torch.ones(4, 8))
            seen.say(name, "went through")
        except Refused as error:
            names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            seen.say(name, names, error.__context__, error.__cause__)
    handle.remove()
    seen.say(name, nets.train(model, 20, optimizer, x=torch.ones(4, 8))[0], nets.digest(model))


for steps in (2, 70):
    model = nn.Sequential(nets.Net(), nets.Net())
    _, optimizer = nets.train(model, steps)
    inner = model[1].a
    attempt("forward pre", model, optimizer, inner.register_forward_pre_hook(refuses))
    attempt("forward", model, optimizer, inner.register_forward_hook(refuses))
    attempt("forward always", model, optimizer, inner.register_forward_hook(refuses, always_call=True))
    attempt("of the root", model, optimizer, model.register_forward_hook(refuses))
    attempt("backward pre", model, optimizer, inner.register_full_backward_pre_hook(refuses))
    attempt("backward", model, optimizer, inner.register_full_backward_hook(refuses))
    attempt("gradient", model, optimizer, inner.weight.register_hook(refuses))
    attempt("accumulated", model, optimizer, inner.weight.register_post_accumulate_grad_hook(refuses))
    attempt("step pre", model, optimizer, optimizer.register_step_pre_hook(refuses))
    attempt("step", model, optimizer, optimizer.register_step_post_hook(refuses))
    attempt("global forward", model, optimizer, nn.modules.module.register_module_forward_hook(refuses))
    attempt(
        "global backward", model, optimizer, nn.modules.module.register_module_full_backward_hook(refuses)
    )
    attempt("global step", model, optimizer, register_optimizer_step_pre_hook(refuses))
try:
    nets.Net().register_parameter("a.b", None)
except KeyError as error:
    seen.say(error)

# how: many
import contextlib
import contextvars

import seen
import torch

var = contextvars.ContextVar("var", default=0)


@contextlib.contextmanager
def scope(n):
    token = var.set(n)
    try:
        yield
    finally:
        var.reset(token)


with scope(3):
    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
    seen.say(
        var.get(),
        contextvars.copy_context().run(var.get),
        len([v for v in contextvars.copy_context() if v is var]),
    )
seen.say(var.get(), sorted(v.name for v in contextvars.copy_context()))

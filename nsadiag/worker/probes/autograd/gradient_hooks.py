"""A hook on a parameter's gradient that leaves nothing behind once it is taken away.

torch keeps its own half of a post-accumulate hook for good: with every gradient it takes the GIL, saves the thread's
state and finds nothing to call, in instructions that backward's own push out of the cache. Of 200 parameters that
once had one, this was more than half of what light probes cost a step of 7 ms.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

PLAIN = (torch.nn.Parameter, torch.Tensor)


def follow(find: Callable[[], torch.Tensor | None], arrived: Any) -> Callable[[], None]:
    """Has `arrived`, which answers None, called with each gradient of the parameter that `find` finds; returns what undoes it.

    A plain parameter's is called just before the gradient is accumulated, with None where autograd brings none; a
    sharded one's, whose gradient is not autograd's to accumulate, just after, with the parameter.
    """
    parameter = find()
    if parameter is None:
        return lambda: None
    if type(parameter) not in PLAIN or hasattr(parameter, "_is_flat_param"):
        register = parameter.register_post_accumulate_grad_hook
        return functools.partial(_added(parameter, "_post_accumulate_grad_hooks", register, arrived).remove)
    # Or sending the parameter to another process would warn that its hook does not come along.
    arrived.__torch_unserializable__ = True
    handle = _added(parameter, "_backward_hooks", parameter.register_hook, arrived)
    return functools.partial(_unfollow, find, handle)


def _added(parameter: torch.Tensor, table: str, register: Callable[[Any], Any], hook: Any) -> Any:
    """The same as torch's `register` does to a leaf, but for the import within it: a program's own `__import__` would see that."""
    if parameter.grad_fn is not None:
        return register(hook)
    hooks = getattr(parameter, table)
    if hooks is None:
        hooks = OrderedDict()
        setattr(parameter, table, hooks)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _unfollow(find: Callable[[], torch.Tensor | None], handle: Any) -> None:
    handle.remove()
    parameter = find()
    # An empty dictionary is looked through with every gradient, as a post-accumulate hook's is. One of the user's stays.
    if parameter is not None and parameter._backward_hooks is not None and not parameter._backward_hooks:
        parameter._backward_hooks = None

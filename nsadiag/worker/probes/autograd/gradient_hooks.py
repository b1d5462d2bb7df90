"""A hook on a parameter's gradient that leaves nothing behind once it is taken away.

torch keeps its own half of a post-accumulate hook for good: with every gradient it takes the GIL, saves the thread's
state and finds nothing to call, in instructions that backward's own push out of the cache. Of 200 parameters that
once had one, this was more than half of what light probes cost a step of 7 ms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

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
        handle: Any = parameter.register_post_accumulate_grad_hook(arrived)
        return functools.partial(handle.remove)
    # Or sending the parameter to another process would warn that its hook does not come along.
    arrived.__torch_unserializable__ = True
    return functools.partial(_unfollow, find, parameter.register_hook(arrived))


def _unfollow(find: Callable[[], torch.Tensor | None], handle: Any) -> None:
    handle.remove()
    parameter = find()
    # An empty dictionary is looked through with every gradient, as a post-accumulate hook's is. One of the user's stays.
    if parameter is not None and parameter._backward_hooks is not None and not parameter._backward_hooks:
        parameter._backward_hooks = None

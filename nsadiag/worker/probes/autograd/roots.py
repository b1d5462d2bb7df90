"""Models that have run, and the thread that ran each of them last: what else is asked of one is asked on that thread."""

from __future__ import annotations

import weakref
from threading import get_ident

import torch

from nsadiag.worker.probes.autograd import module_tree

# By id, since modules may define __eq__; gone with the module: some jobs make a module, such as a loss, in every step.
_met: dict[int, weakref.ref[torch.nn.Module]] = {}
_threads: dict[int, int] = {}


def met(root: torch.nn.Module) -> None:
    """To be called when a module runs as the outermost one for the first time."""
    key = id(root)
    if module_tree.has_parameters(root):
        _met[key] = weakref.ref(root, lambda gone: _forget(key, gone))
        _threads[key] = get_ident()


def _forget(key: int, gone: weakref.ref[torch.nn.Module]) -> None:
    if _met.get(key) is gone:
        del _met[key]
        _threads.pop(key, None)


def called(key: int) -> None:
    """To be called with the id of each module that runs as the outermost one."""
    if key in _threads:
        _threads[key] = get_ident()


def living() -> list[torch.nn.Module]:
    """All of them, in the order in which they ran first."""
    return [root for reference in list(_met.values()) if (root := reference()) is not None]


def is_ours(key: int) -> bool:
    """Whether the calling thread may look at gradients, and change hooks, of the module with this id.

    The backward of another thread does both without the interpreter's lock, and the process may crash. Where one thread
    runs all models, a thread that runs none is autograd's own, in the backward of that one.
    """
    return _threads.get(key) == get_ident() or len(set(_threads.values())) == 1


def ours() -> list[torch.nn.Module]:
    """Those of `living` that are the calling thread's."""
    return [root for root in living() if is_ours(id(root))]


def forget() -> None:
    _met.clear()
    _threads.clear()

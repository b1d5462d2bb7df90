"""Models that have run as the outermost module, and the thread that ran each of them last.

The backward of a thread replaces gradients and looks through hooks without the interpreter's lock: what another thread reads
or changes meanwhile may crash the process. Both are left to the thread that runs the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from threading import get_ident

import torch

from nsadiag.worker.probes.autograd import module_tree

# The number of the backward in which the calling thread works, whether it began there or in another thread.
_backward_here = torch._C._current_graph_task_id
_NONE = -1


class Owner:
    """The thread that last ran a model, or a part of it by itself: it alone reads gradients, and changes hooks, of the model."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = here()


class _Model:
    def __init__(self, module: torch.nn.Module, owner: Owner, *, is_root: bool) -> None:
        key = id(module)
        self.module = weakref.ref(module, lambda gone: _forget(key, gone))
        self.owner = owner
        self.is_root = is_root  # when it ran first, it was no part of a model that had run
        self.trains = False
        self.ran = False  # since the last `turn`


# In the order in which they ran first. By id, since modules may define __eq__; gone with the module: some jobs make a
# module, such as a loss, in every step.
_models: dict[int, _Model] = {}


def here() -> int:
    """The calling thread; for one of autograd's own, the thread that runs the models, where a single one does."""
    if _backward_here() != _NONE:
        threads = {model.owner.thread for model in list(_models.values())}
        if len(threads) == 1:
            return threads.pop()
    return get_ident()


def met(root: torch.nn.Module) -> Owner:
    """To be called when a module that is part of no known one runs; returns the owner of all that is in it."""
    owner = Owner()
    if module_tree.has_parameters(root):
        for _, part in module_tree.named_modules(root):
            if (known := _models.get(id(part))) is not None:
                known.owner = owner
        _models[id(root)] = _Model(root, owner, is_root=True)
    return owner


def called(owner: Owner) -> None:
    """To be called with the owner of each module that runs as the outermost one."""
    # In a backward it is recomputed, on whichever thread.
    if _backward_here() == _NONE:
        owner.thread = get_ident()


def note_run(module: torch.nn.Module, owner: Owner, *, trains: bool) -> None:
    """Has `trained` and `running` list a module that has parameters and runs as the outermost one, also a part of another."""
    model = _models.get(id(module))
    if model is None:
        model = _models[id(module)] = _Model(module, owner, is_root=False)
    model.ran = True
    model.trains |= trains


def turn() -> None:
    """The next step begins."""
    for model in list(_models.values()):
        model.ran = False


def _forget(key: int, gone: weakref.ref[torch.nn.Module]) -> None:
    model = _models.get(key)
    if model is not None and model.module is gone:
        del _models[key]


def _modules(models: Iterable[_Model]) -> list[torch.nn.Module]:
    return [module for model in models if (module := model.module()) is not None]


def living() -> list[torch.nn.Module]:
    """Modules that have run and were no part of another one then."""
    return _modules(model for model in list(_models.values()) if model.is_root)


def trained() -> list[torch.nn.Module]:
    """Modules that have been noted to run with gradients."""
    return _modules(model for model in list(_models.values()) if model.trains)


def running() -> list[torch.nn.Module]:
    """Modules that have been noted to run in this step, also without gradients."""
    return _modules(model for model in list(_models.values()) if model.ran)


def owner_of(module: torch.nn.Module) -> Owner | None:
    """The owner of a module that has run, if it has parameters."""
    model = _models.get(id(module))
    return model.owner if model is not None else None


def ours(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those of them that the calling thread runs."""
    me = here()
    return [m for m in modules if (owner := owner_of(m)) is not None and owner.thread == me]


def forget() -> None:
    _models.clear()

"""torch's compiler, imported when something is compiled: optimizers, DDP and DTensor import it to learn that nothing is.

It takes as long to import as torch. Where torch is another than this expects, it imports it as ever.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.parallel
import torch.utils.checkpoint
from torch import _compile

from nsadiag.worker.interruptions import tolerated

NAME = "torch._dynamo"
DISABLED = "__dynamo_disable"  # where torch keeps a function as the compiler leaves it


def postpone() -> None:
    """Until something asks the compiler for more than a step of an optimizer does, it is not imported."""
    spec = None if NAME in sys.modules else find_spec(NAME)
    if spec is not None:
        with tolerated(AttributeError, TypeError, ValueError):
            excluded = [function for function in _excluded() if not hasattr(function, DISABLED)]
            vars(torch)["_dynamo"] = sys.modules[NAME] = _Unimported(spec, excluded)


def _excluded() -> list[Any]:
    """Functions decorated with torch's `_disable_dynamo`."""
    decorated = _compile._disable_dynamo(lambda: None).__code__
    of = decorated.co_freevars.index("fn")
    found = (f for f in gc.get_objects() if type(f) is FunctionType and f.__code__ is decorated)
    return [f.__closure__[of].cell_contents for f in found if f.__closure__]


class _Unimported(ModuleType):
    """The compiler before its import, which becomes itself at the first question that it does not answer here."""

    def __init__(self, spec: Any, excluded: list[Any]) -> None:
        super().__init__(NAME)
        for function in excluded:
            setattr(function, DISABLED, function)

        def disable(fn: Any = None, recursive: bool = True, **more: Any) -> Any:
            # Asked so by `_disable_dynamo` alone, of a function that torch has defined since.
            if fn is None or more != {"wrapping": False}:
                return _Unimported.__getattr__(self, "disable")(fn, recursive, **more)
            excluded.append(fn)
            return fn

        own = {
            "disable": disable,
            "__file__": spec.origin,
            "__loader__": spec.loader,
            "__package__": NAME,
            "__spec__": spec,
        }
        vars(self).update(own, **ANSWERS, _excluded=excluded, _once=threading.RLock())

    def __getattr__(self, name: str) -> Any:
        with vars(self).get("_once", threading.Lock()):
            if type(self) is _Unimported:
                self._become_itself()
        return getattr(self, name)

    def _become_itself(self) -> None:
        about = vars(self)
        for function in about["_excluded"]:
            with tolerated(AttributeError):
                delattr(function, DISABLED)
        for name in (*ANSWERS, "_excluded", "_once", "disable"):
            del about[name]
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = about["__spec__"]
        about["__path__"] = spec.submodule_search_locations
        spec.loader.exec_module(self)


class _Part:
    """One of its modules, with answers to what is asked where nothing is compiled."""

    def __init__(self, name: str, **answers: Any) -> None:
        self._name = f"{NAME}.{name}"
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def _nothing(*_: Any, **__: Any) -> None:
    """Whatever has an effect on compiled code alone."""


ANSWERS = {
    "graph_break": _nothing,  # asked by an optimizer's step
    "utils": _Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),  # by DDP; the default
    "trace_rules": _Part("trace_rules", clear_lru_cache=_nothing),  # by init_process_group
}

"""IPython's autoreload updates each class of a module in place, by what its new version has: it is to see none of our frames."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.probes.autograd.module_calls import patches
from nsadiag.worker.probes.patch import replaced, stands_for

RELOADER = "IPython.extensions.autoreload"


def step_aside(stack: contextlib.ExitStack) -> None:
    """Takes the frames off module calls whenever it reloads a module, until the stack is left."""
    when_imported(RELOADER, functools.partial(_wrap, stack))


def _wrap(stack: contextlib.ExitStack) -> None:
    module = sys.modules[RELOADER]
    stack.enter_context(replaced(module, "superreload", _observed(vars(module)["superreload"])))


def _observed(reload: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(reload)
    def superreload(*args: Any, **kwargs: Any) -> Any:
        with patches.lifted():
            return reload(*args, **kwargs)

    return superreload

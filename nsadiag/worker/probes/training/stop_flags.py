"""Early-stop flags of Lightning and transformers, of which each rank has its own, and the line that sets them.

Frameworks reset them often and look at them in each round; only the turn to true is noted.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.place import is_user_code
from nsadiag.worker.probes.patch import harmless

FLAGS = (
    ("lightning.pytorch.trainer.trainer", "Trainer", "should_stop"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "should_stop"),
    ("transformers.trainer_callback", "TrainerControl", "should_training_stop"),
)
_MISSING: Any = object()


class _Flag:
    """Stands in the class in place of the attribute; the values stay where they were, in each object's own dictionary."""

    def __init__(self, name: str, default: Any) -> None:
        self.name, self.default = name, default

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        found = self.default if owner is None else vars(owner).get(self.name, self.default)
        if found is _MISSING:
            raise AttributeError(self.name)
        return found

    def __set__(self, owner: Any, value: Any) -> None:
        before = vars(owner).get(self.name, False)
        vars(owner)[self.name] = value
        _note(self.name, before, value, sys._getframe(1))

    def __delete__(self, owner: Any) -> None:
        if vars(owner).pop(self.name, _MISSING) is _MISSING:
            raise AttributeError(self.name)


@harmless
def _note(name: str, before: Any, value: Any, frame: FrameType) -> None:
    rank = session.current()
    if rank is None or not value or before or not is_user_code(frame.f_code):
        return
    at = f"\t{frame.f_code.co_filename}:{frame.f_lineno}:{frame.f_code.co_name}"
    rank.emit(Kind.STOP, Phase.POINT, rank.names(name), 0, 0, rank.names(at))


def _wrap(stack: contextlib.ExitStack, module: str, kind: str, name: str) -> None:
    owner = getattr(sys.modules[module], kind, None)
    if owner is None:
        return
    before = vars(owner).get(name, _MISSING)
    # A property, or a slot, is the framework's own business.
    if hasattr(before, "__set__"):
        return
    setattr(owner, name, _Flag(name, before))
    stack.callback(_restore, owner, name, before)


def _restore(owner: type, name: str, before: Any) -> None:
    if before is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


@contextlib.contextmanager
def stops() -> Iterator[None]:
    """The user's lines that tell a framework to end the training."""
    with contextlib.ExitStack() as stack:
        for module, kind, name in FLAGS:
            when_imported(module, functools.partial(_wrap, stack, module, kind, name))
        yield

"""Hooks, handlers and parameter groups that the user's code registers again in every step, by line.

Nothing runs in a step that registers nothing. What is written is how much of it lives, when the first, second, third,
fifth, ninth ... step comes that registers at a line (piles.jsonl), every 50 steps, and once more at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.place import is_user_code
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.patch import STEPS_OUT, harmless, replaced, stands_for
from nsadiag.worker.probes.training.optimizer import on_some_steps

MOST_LINES = 256
ROOM = 64  # entries that may be dead before they are looked through


class _Pile:
    """Registrations of one kind by one line."""

    def __init__(self, kind: str, place: str) -> None:
        self.kind, self.place = kind, place
        self.made = self.steps = self.written = 0
        self.step = -1  # the last in which something was registered
        self._entries: list[tuple[Callable[[], Any], int | None]] = []
        self._lived = 0

    def add(self, ref: Callable[[], Any], key: int | None) -> None:
        self.made += 1
        self._entries.append((ref, key))
        if len(self._entries) > 2 * self._lived + ROOM:
            self.alive()

    def alive(self) -> int:
        """Number of those that have neither been removed nor gone with what they were registered at."""
        self._entries = [each for each in self._entries if _lives(*each)]
        self._lived = len(self._entries)
        return self._lived

    def row(self) -> dict[str, Any]:
        self.written = self.made
        return {
            "kind": self.kind, "place": self.place, "step": self.step, "steps": self.steps,
            "alive": self.alive(), "made": self.made,
        }  # fmt: skip


_piles: dict[tuple[str, str], _Pile] = {}
_unwritten: list[dict[str, Any]] = []  # of the time before this process was known for a rank


def _lives(ref: Callable[[], Any], key: int | None) -> bool:
    held = ref()
    return held is not None and (key is None or key in held)


@harmless
def _note(kind: str, by: FrameType | None, ref: Callable[[], Any], key: int | None = None) -> None:
    """`by` is the frame that registers: what libraries register by themselves is theirs."""
    if by is None or not is_user_code(by.f_code):
        return
    place = f"{by.f_code.co_filename}:{by.f_lineno}:{by.f_code.co_name}"
    pile = _piles.get((kind, place))
    if pile is None:
        if len(_piles) >= MOST_LINES:
            return
        pile = _piles[kind, place] = _Pile(kind, place)
    rank = session.current()
    step = rank.box.step if rank is not None else 0
    if step != pile.step:
        # A power of two: what the steps before have left.
        if pile.steps and not pile.steps & (pile.steps - 1):
            _write(pile.row())
        pile.step = step
        pile.steps += 1
    pile.add(ref, key)


def _write(*rows: dict[str, Any]) -> None:
    rank = session.current()
    _unwritten.extend(rows)
    if rank is None:
        return
    for row in _unwritten:
        append_json_line(rank.directory.piles, row)
    _unwritten.clear()


@harmless
def _write_all(*_: Any) -> None:
    _write(*(pile.row() for pile in _piles.values() if pile.made > max(pile.written, 1)))


def _observed_handle(construct: Callable[..., None]) -> Callable[..., None]:
    """Whatever torch registers in Python, on modules, tensors, optimizers or for all of them, gives such a handle."""
    is_traced, frame_of = torch.compiler.is_dynamo_compiling, sys._getframe

    @stands_for(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if not is_traced():
            by = frame_of(STEPS_OUT)
            _note(by.f_code.co_name, by.f_back, self.hooks_dict_ref, self.id)

    return __init__


def _observed_addition(kind: str, call: Callable[..., Any], holder: bool) -> Callable[..., Any]:
    """A method that adds its argument to `self`, and keeps it as long as that lives (`holder`), or its argument does."""
    is_traced, frame_of = torch.compiler.is_dynamo_compiling, sys._getframe

    @stands_for(call)
    def add(self: Any, added: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, added, *args, **kwargs)
        if not is_traced():
            _note(kind, frame_of(STEPS_OUT), weakref.ref(self if holder else added))
        return result

    return add


@contextlib.contextmanager
def piling() -> Iterator[None]:
    """Hooks, handlers of logging, and groups of parameters, by the user's line that registers them (piles.jsonl)."""
    base = torch.optim.Optimizer
    groups = _observed_addition("add_param_group", base.add_param_group, holder=True)
    handlers = _observed_addition("addHandler", logging.Logger.addHandler, holder=False)
    with ExitStack() as stack:
        stack.enter_context(replaced(RemovableHandle, "__init__", _observed_handle(RemovableHandle.__init__)))
        stack.enter_context(replaced(base, "add_param_group", groups))
        stack.enter_context(replaced(logging.Logger, "addHandler", handlers))
        subscribe(stack, on_some_steps, _write_all)
        atexit.register(_write_all)
        stack.callback(atexit.unregister, _write_all)
        stack.callback(_piles.clear)
        yield

"""Optimizer steps: when each began and ended, and how many were completed."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.patch import failed, not_compiled
from nsadiag.worker.probes.rests import is_passed_over
from nsadiag.worker.probes.training.step_hooks import step_hooks
from nsadiag.worker.probes.values import stepped_by
from nsadiag.worker.recorder import Recorder

SOME_STEPS = 50
# Called after the first step and every SOME_STEPS, or when the rest is over in which those lie, with the optimizer and the
# number of steps so far.
on_some_steps: list[Callable[[Any, int], None]] = []
# Called before every step: there is nobody here most of the time.
before_step: list[Callable[[Any], None]] = []
# The same after it.
after_step: list[Callable[[Any], None]] = []
# Called before the first step of each.
on_new: list[Callable[[Any], None]] = []
_met: set[int] = set()  # by address: one that is made where another was is no new one
_OPTIMIZER, _BEGIN, _END = int(Kind.OPTIMIZER), int(Phase.BEGIN), int(Phase.END)
# Only the first optimizer counts steps: a job with two of them still has one loop.
_counting: weakref.ref[Any] | None = None
# Until it has rested for so many steps of others: kept in a list, it may belong to a stage that is over.
RESTED = 64
_others = 0
_some_at = 1  # the step after which they are called next


# They guard themselves: they run in every step, and `harmless` would cost each a frame.
def _before(optimizer: Any, *_: Any) -> None:
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank or session.ensure_rank()
        if rank is None:
            return
        name = type(optimizer).__name__
        rank.emit(_OPTIMIZER, _BEGIN, rank.names.known.get(name) or rank.names(name))
        if id(optimizer) not in _met:
            _met.add(id(optimizer))
            _take_over(optimizer)
            for subscriber in on_new:
                subscriber(optimizer)
        for subscriber in before_step:
            subscriber(optimizer)
    except Exception as error:
        failed(_before, error)


def first_held(optimizer: Any) -> Any:
    """Its first parameter: an optimizer that is made anew, after a restart within the job, has the one of the old."""
    return next(iter(stepped_by(optimizer)), None)


def _take_over(optimizer: Any) -> None:
    """A scheduler may keep the old one alive, which never steps again."""
    global _counting
    counting = _counting() if _counting is not None else None
    if counting is not None and first_held(counting) is first_held(optimizer):
        _counting = weakref.ref(optimizer)


def _after(optimizer: Any, *_: Any) -> None:
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank
        if rank is None:
            return
        name = type(optimizer).__name__
        rank.emit(_OPTIMIZER, _END, rank.names.known.get(name) or rank.names(name))
        for after in tuple(after_step) if after_step else ():
            after(optimizer)
        _stepped(rank, optimizer)
    except Exception as error:
        failed(_after, error)


def _after_resting(optimizer: Any, *_: Any) -> None:
    global _others
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank
        if rank is None:
            return
        if _counting is not None and _counting() is optimizer and is_passed_over(rank):
            _others = 0
            return
        _stepped(rank, optimizer)
    except Exception as error:
        failed(_after_resting, error)


def _stepped(rank: Recorder, optimizer: Any) -> None:
    global _counting, _others, _some_at
    if _counting is None or _counting() is None or (_others >= RESTED and _counting() is not optimizer):
        _counting = weakref.ref(optimizer)
    _others += 1
    if _counting() is optimizer:
        _others = 0
        rank.step_ended()
        budget.step_ended()
        steps = rank.box.step
        if steps >= _some_at:
            _some_at = (steps // SOME_STEPS + 1) * SOME_STEPS
            for subscriber in on_some_steps:
                subscriber(optimizer, steps)


def _after_counted(optimizer: Any, *_: Any) -> None:
    """In place of all of these where nobody has asked for a recording: counts the step."""
    global _counting, _others
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank or session.ensure_rank()
        if rank is None:
            return
        _others += 1
        known = _counting() if _counting is not None else None
        if known is not optimizer:
            if known is not None and _others < RESTED and first_held(known) is not first_held(optimizer):
                return
            _counting = weakref.ref(optimizer)
        _others = 0
        rank.step_ended()
        if rank.box.step == 1:
            for subscriber in on_some_steps:
                subscriber(optimizer, 1)
    except Exception as error:
        failed(_after_counted, error)


for _function in (_before, _after, _after_resting, _after_counted):
    not_compiled(_function, what_it_calls=True)


@contextlib.contextmanager
def optimizer() -> Iterator[None]:
    """Global hooks of torch.optim: they see optimizers made before and after."""
    if "armed" in os.environ.get("NSADIAG_PROBES", "").split(","):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        hook = register_optimizer_step_post_hook(_after_counted)
        try:
            yield
        finally:
            hook.remove()
        return
    with step_hooks(_before, _after, after_resting=_after_resting):
        yield

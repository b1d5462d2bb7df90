"""Optimizer steps: when each began and ended, and how many were completed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.patch import failed, not_compiled
from nsadiag.worker.probes.rests import SOME_STEPS, is_passed_over, resting
from nsadiag.worker.probes.values import stepped_by
from nsadiag.worker.recorder import Recorder

# Called after the first step and every SOME_STEPS, with the optimizer and the number of steps so far.
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


# Both guard themselves: they run in every step, and `harmless` would cost each a frame.
def _before(optimizer: Any, *_: Any) -> None:
    if is_dynamo_compiling() or resting.now:
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


def _is_passed_over(rank: Recorder, optimizer: Any) -> bool:
    global _others
    if _counting is None or _counting() is not optimizer or not is_passed_over(rank):
        return False
    _others = 0
    return True


def _after(optimizer: Any, *_: Any) -> None:
    global _counting, _others
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank
        if rank is None:
            return
        if resting.now:
            if _is_passed_over(rank, optimizer):
                return
        else:
            name = type(optimizer).__name__
            rank.emit(_OPTIMIZER, _END, rank.names.known.get(name) or rank.names(name))
            for after in tuple(after_step) if after_step else ():
                after(optimizer)
        if _counting is None or _counting() is None or (_others >= RESTED and _counting() is not optimizer):
            _counting = weakref.ref(optimizer)
        _others += 1
        if _counting() is optimizer:
            _others = 0
            rank.step_ended()
            budget.step_ended()
            steps = rank.box.step
            if steps == 1 or steps % SOME_STEPS == 0:
                for subscriber in on_some_steps:
                    subscriber(optimizer, steps)
    except Exception as error:
        failed(_after, error)


for _function in (_before, _after, _is_passed_over):
    not_compiled(_function, what_it_calls=True)


@contextlib.contextmanager
def optimizer() -> Iterator[None]:
    """Global hooks of torch.optim: they see optimizers made before and after."""
    from torch.optim import optimizer as optim

    before = optim.register_optimizer_step_pre_hook(_before)
    after = optim.register_optimizer_step_post_hook(_after)
    try:
        yield
    finally:
        before.remove()
        after.remove()

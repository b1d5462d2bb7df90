"""Activation checkpointing: what is computed again in backward, and whether it is what was computed in forward.

`checkpoint(lambda x: block(x), x)` in a loop over blocks binds `block` late: every recomputation runs the last
block. Reentrant checkpointing under DDP then fails with "marked ready twice"; otherwise the job completes, and
every block but the last has wrong gradients, silently. Modules are told by their calls; parameters that a function
uses without any module, by what its variables are bound to. What draws random numbers has to draw the same ones again:
with `preserve_rng_state=False` dropout draws another mask.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.layout import append_json_line
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.place import user_place
from nsadiag.worker.probes import generators
from nsadiag.worker.probes.autograd import module_calls
from nsadiag.worker.probes.autograd.gradients import name_of
from nsadiag.worker.probes.looks import is_look
from nsadiag.worker.probes.patch import harmless, replaced, stands_for, unseen
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.replacement import leave_no_frame

MAX_REPORTS = 200
ALIAS = "torch_utils_checkpoint"  # as torch's own wrapper of modules imports it

_reported: set[tuple[Any, ...]] = set()


@functools.lru_cache(maxsize=256)
def _globals_of(code: CodeType) -> frozenset[str]:
    """Names that it looks up in its module. Attributes are in `co_names` as well, and mean nothing there."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in loads)


def _bound(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters and modules that the function's variables stand for now: closed over, or global."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names = getattr(function, "__globals__", {})
    found: dict[str, Any] = {name: names[name] for name in _globals_of(code) if name in names}
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
        with tolerated(ValueError):  # it has no value any more
            found[name] = cell.cell_contents
    return {n: v for n, v in found.items() if isinstance(v, torch.nn.Parameter | torch.nn.Module)}


class _Checkpointed:
    """The user's function, which remembers what its first run entered and compares every later run with that."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._forward: list[int] | None = None
        self._bound: dict[str, Any] = {}
        self._place = user_place()
        self._states: generators.States = []  # before the first run
        self._drew: list[bool] = []  # in the first run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        again = self._forward is not None
        rebound, redrawn = {}, False
        if again:
            rebound, redrawn = self._rebound() or {}, bool(self._redraws())
            self._begin()
        else:
            self._remember()
        with module_calls.entered() as modules:
            try:
                return self._function(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                if again:
                    self._end(modules, rebound, redrawn)
                else:
                    self._forward = modules
                    self._draws()

    unseen(__call__)

    @harmless
    def _remember(self) -> None:
        self._bound = _bound(self._function)
        rank = session.current()
        # A state is copied for each generator: at the steps that are looked at, not at every one.
        self._states = generators.states() if rank is not None and is_look(rank.box.step) else []

    @harmless
    def _draws(self) -> None:
        if self._states:
            self._drew = generators.moved(self._states, generators.states())

    @harmless
    def _redraws(self) -> bool:
        """Whether what was drawn in forward is about to be drawn from another state."""
        if not any(self._drew):
            return False
        changed = zip(self._drew, generators.moved(self._states, generators.states()), strict=False)
        return any(drew and elsewhere for drew, elsewhere in changed)

    @harmless
    def _rebound(self) -> dict[str, list[str]]:
        """Variables that stand for another parameter or module than in forward: its name then, and now."""
        now = _bound(self._function)
        changed = {n: (had, now[n]) for n, had in self._bound.items() if n in now and now[n] is not had}
        return {name: [_name(value) for value in values] for name, values in changed.items()}

    @harmless
    def _begin(self) -> None:
        rank = session.current()
        if rank is not None:
            rank.emit(Kind.RECOMPUTE, Phase.BEGIN, *self._what(rank, self._forward or []))

    @harmless
    def _end(self, entered: list[int], rebound: dict[str, list[str]], redrawn: bool) -> None:
        rank = session.current()
        if rank is None:
            return
        forward = self._forward or []
        # Non-reentrant checkpointing stops as soon as it has what backward needs: then this is a part of that.
        differs = entered != forward[: len(entered)] or bool(rebound) or redrawn
        name, _, _, place = self._what(rank, entered)
        rank.emit(Kind.RECOMPUTE, Phase.END, name, len(entered), int(differs), place)
        key = (*forward, 0, *entered, *(name for names in rebound.values() for name in names))
        if differs and key not in _reported and len(_reported) < MAX_REPORTS:
            _reported.add(key)
            self._report(rank, forward, entered, rebound, redrawn)

    def _what(self, rank: Recorder, entered: list[int]) -> tuple[int, int, int, int]:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return (entered[0] if entered else rank.names(name)), len(entered), 0, rank.names("\t" + self._place)

    def _report(
        self,
        rank: Recorder,
        forward: list[int],
        entered: list[int],
        rebound: dict[str, list[str]],
        redrawn: bool,
    ) -> None:
        code, names = getattr(self._function, "__code__", None), rank.names.by_number()
        append_json_line(
            rank.directory.recomputed,
            {
                "function": getattr(self._function, "__qualname__", type(self._function).__name__),
                "defined": f"{code.co_filename}:{code.co_firstlineno}" if code else None,
                "place": self._place,
                "step": rank.box.step,
                "forward": [names.get(number) for number in forward],
                "recomputed": [names.get(number) for number in entered],
                "rebound": rebound,
                "redrawn": redrawn,
            },
        )


def _name(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        rank = session.current()
        number = module_calls.name_of(value, rank) if rank is not None else 0
        return str(rank.names.by_number().get(number)) if rank is not None else type(value).__name__
    return name_of(value) or f"a parameter {list(value.shape)}"


def _observed(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(checkpoint)
    def observed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Binding late is no accident of one step: the learning steps show it, and the others go unburdened.
        if is_dynamo_compiling() or not module_calls.observing_everywhere() or session.current() is None:
            return checkpoint(function, *args, **kwargs)
        return checkpoint(_Checkpointed(function), *args, **kwargs)

    return observed


@contextlib.contextmanager
def recompute() -> Iterator[None]:
    """Wraps `torch.utils.checkpoint.checkpoint` wherever it has been imported to."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        checkpoint = torch.utils.checkpoint.checkpoint
        observed = _observed(checkpoint)
        stack.enter_context(replaced(torch.utils.checkpoint, "checkpoint", observed, ALIAS))
        yield

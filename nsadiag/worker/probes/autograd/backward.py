"""The backward pass: begin, end, and the size of the autograd graph, by type and module, where it is worth the count."""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.patch import dressed, failed, not_compiled, replaced, unseen
from nsadiag.worker.probes.rests import resting, wake
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.replacement import leave_no_frame

COUNT_AT_MOST = 20_000  # nodes; the walk costs one to two microseconds each
COUNTED_STEPS = 2
MARKS_AT_MOST = 100_000
SLOW_S = 1.0  # a backward longer than this has its successor's graph counted again
NOT_NUMBERED = 1 << 62  # AccumulateGrad nodes carry the largest number there is

_BACKWARD, _BEGIN, _END = int(Kind.BACKWARD), int(Phase.BEGIN), int(Phase.END)
# Bound here: what every step asks has to come from memory, and so would each module on the way.
_has_function_mode = torch._C._is_torch_function_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_profiled = torch.autograd._profiler_enabled
# Called with the roots and the gradients handed in (None for a loss), before an outermost backward.
on_backward: list[Callable[[Any, Any], None]] = []
# Called after an outermost backward.
on_backward_end: list[Callable[[], None]] = []


class Now:
    """Values that other probes look at without a call."""

    made = 0  # backwards, without nested ones
    depth = 0  # of nested backwards; in one, a forward that is seen is a recomputation
    counting = True  # whether the graph that is being built will be counted: the first ones, and after a long backward


now = Now()


class Census:
    """The module that was running when each autograd node was made: nodes are numbered in order of creation."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._modules: list[int] = []
        self._stack: list[int] = [0]

    def enter(self, module: int) -> None:
        """From here on nodes are this module's."""
        self._stack.append(module)
        self._mark()

    def leave(self) -> None:
        """From here on they are the calling module's again."""
        if len(self._stack) > 1:
            self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        if len(self._numbers) >= MARKS_AT_MOST:
            return
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._stack[-1])

    def module_of(self, number: int) -> int:
        """The module, 0 for a node that was made outside all of them."""
        at = bisect.bisect_right(self._numbers, number) - 1
        return self._modules[at] if at >= 0 else 0


_census: Census | None = None  # of the forwards since the last backward, while graphs are counted


def census() -> Census | None:
    """The census to which modules report their begin and end; None while nobody will count."""
    global _census
    if _census is None and now.counting and now.depth == 0:
        _census = Census()
    return _census


def count_nodes(roots: Any, seen_by: Census | None = None) -> tuple[Counter[str], Counter[int], bool]:
    """Nodes reachable from the tensors' grad_fn, by type and by module; True if it stopped at COUNT_AT_MOST."""
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    stack = [t.grad_fn for t in tensors if getattr(t, "grad_fn", None) is not None]
    seen = set(stack)
    types: Counter[str] = Counter()
    modules: Counter[int] = Counter()
    while stack:
        node = stack.pop()
        types[type(node).__name__] += 1
        number = node._sequence_nr()
        if seen_by is not None and number < NOT_NUMBERED:
            modules[seen_by.module_of(number)] += 1
        for child, _ in node.next_functions:
            if child is not None and child not in seen and len(seen) < COUNT_AT_MOST:
                seen.add(child)
                stack.append(child)
    return types, modules, len(seen) >= COUNT_AT_MOST


def _count(rank: Recorder, tensors: Any) -> None:
    types, modules, capped = count_nodes(tensors, _census)
    nodes, names = sum(types.values()), rank.names.by_number()
    rank.emit(Kind.GRAPH, Phase.POINT, 0, nodes, int(capped))
    write_json(
        rank.directory.graph,
        {
            "step": rank.box.step,
            "nodes": nodes,
            "capped": capped,
            "types": dict(types.most_common()),
            "modules": {names.get(number, ""): count for number, count in modules.most_common(1000)},
        },
    )


def _is_lost(tensors: Any) -> bool:
    """Whether it is one number that is NaN or infinite; on a GPU one would have to wait for it to know.

    Not asked where a mode or a profiler of the user's would count an operation of ours among the job's.
    """
    if type(tensors) is not torch.Tensor or _has_function_mode() or _dispatch_modes() or _is_profiled():
        return False
    try:
        if tensors.is_cpu and tensors.numel() == 1:
            value = tensors.item()
            # No function's code has to come from memory for this, and a complex number may be asked, too.
            return bool(value - value != 0)
    except Exception as error:
        failed(_is_lost, error)
    return False


def _begin(tensors: Any) -> None:
    try:
        rank = session.recorded.rank or session.ensure_rank()
        if rank is None:
            return
        place = rank.places.here()
        if now.counting:
            _count(rank, tensors)
        rank.emit(_BACKWARD, _BEGIN, 0, int(_is_lost(tensors)), 0, place)
    except Exception as error:
        failed(_begin, error)


not_compiled(_is_lost, what_it_calls=True)
not_compiled(_begin, what_it_calls=True)


def _observed(run: Callable[..., Any]) -> Callable[..., Any]:
    is_traced = is_dynamo_compiling

    # Not by `stands_for`, which would be another frame where nothing is recorded.
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        # Dynamo folds this test; what it traces is the original alone.
        if is_traced():
            return run(tensors, *args, **kwargs)
        try:
            if not resting.now or now.depth or _is_lost(tensors):
                return _recorded(run, tensors, *args, **kwargs)
            now.depth = 1
            try:
                return run(tensors, *args, **kwargs)
            finally:
                now.depth = 0
                now.made += 1
        except BaseException as error:
            if isinstance(error, Exception) and not now.depth:
                suppressed_exceptions.left(error, "backward")
            leave_no_frame(error)
            raise

    return dressed(backward, run)


def _recorded(run: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    global _census
    # Reentrant checkpointing calls backward inside backward: only the outermost is the job's own.
    if now.depth:
        now.depth += 1
        try:
            return run(tensors, *args, **kwargs)
        finally:
            now.depth -= 1
    if resting.now:
        wake()
    for subscriber in on_backward:
        subscriber(tensors, args[0] if args else kwargs.get("grad_tensors"))
    _begin(tensors)
    started = monotonic()
    now.depth += 1
    try:
        return run(tensors, *args, **kwargs)
    finally:
        now.depth -= 1
        now.made += 1
        slow = monotonic() - started > SLOW_S
        _census, now.counting = None, now.made < COUNTED_STEPS or slow
        if session.recorded.rank is not None:
            session.recorded.rank.emit(_BACKWARD, _END)
        for each in on_backward_end:
            each()


unseen(_recorded)


@contextlib.contextmanager
def backward() -> Iterator[None]:
    """Wraps torch.autograd.backward, which Tensor.backward calls."""
    with replaced(torch.autograd, "backward", _observed(torch.autograd.backward)):
        yield

"""The backward pass: begin, end, and the size of the autograd graph where it is worth the count."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.worker import runtime
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.patch import harmless, replaced

COUNT_AT_MOST = 20_000  # nodes; the walk costs about a microsecond each
SLOW_S = 1.0  # a backward longer than this has its successor's graph counted again

_depth = 0  # of nested calls
_backwards = 0
_last_s = 0.0


def is_running() -> bool:
    """Whether a forward that is seen now is a recomputation."""
    return _depth > 0


def count_nodes(roots: Any) -> tuple[int, bool]:
    """Nodes reachable from the tensors' grad_fn, and whether the count stopped at COUNT_AT_MOST."""
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    stack = [t.grad_fn for t in tensors if getattr(t, "grad_fn", None) is not None]
    seen = set(stack)
    while stack and len(seen) < COUNT_AT_MOST:
        for child, _ in stack.pop().next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return len(seen), bool(stack)


@harmless
def _begin(tensors: Any) -> None:
    rank = runtime.ensure_rank()
    if rank is None:
        return
    place = rank.names("\t" + user_place())
    if _backwards <= 1 or _last_s > SLOW_S:
        nodes, capped = count_nodes(tensors)
        rank.emit(Kind.GRAPH, Phase.POINT, 0, nodes, int(capped))
    rank.emit(Kind.BACKWARD, Phase.BEGIN, 0, 0, 0, place)


@harmless
def _end(seconds: float) -> None:
    global _backwards, _last_s
    _backwards += 1
    _last_s = seconds
    rank = runtime.current()
    if rank is not None:
        rank.emit(Kind.BACKWARD, Phase.END)


def _observed(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        global _depth
        # Reentrant checkpointing calls backward inside backward: only the outermost is the job's own.
        if _depth:
            return run(tensors, *args, **kwargs)
        _begin(tensors)
        started = time.monotonic()
        _depth += 1
        try:
            return run(tensors, *args, **kwargs)
        finally:
            _depth -= 1
            _end(time.monotonic() - started)

    return backward


@contextlib.contextmanager
def backward() -> Iterator[None]:
    """Wraps torch.autograd.backward, which Tensor.backward calls."""
    with replaced(torch.autograd, "backward", _observed(torch.autograd.backward)):
        yield

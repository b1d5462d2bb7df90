"""Calls into torch.distributed, with the user's line: the part that survives SIGKILL.

The flight recorder knows more (sequence numbers, what DDP issues from C++), but it dies with its process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.worker import runtime
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.patch import harmless, replaced

COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object",
    "all_gather_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "scatter_object_list",
)  # fmt: skip
POINT_TO_POINT = (
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "send_object_list",
    "recv_object_list",
)
GROUPS = ("init_process_group", "new_group", "new_subgroups", "destroy_process_group")

_inside = False  # a collective built from others is one call of the user's
_calls: dict[str, int] = {}


def _group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    group = kwargs.get("group")
    if group is None:
        group = next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
    return str(getattr(group, "group_name", "")) or "default_pg"


def _elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
    return sum(t.numel() for t in tensors)


@harmless
def _begin(
    kind: int, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int, int, int] | None:
    rank = runtime.ensure_rank(max(kwargs.get("rank", 0), 0), max(kwargs.get("world_size", 1), 1))
    if rank is None:
        return None
    group = _group_of(args, kwargs)
    number = _calls[group] = _calls.get(group, 0) + 1
    event = (rank.names(op), number, _elements(args, kwargs), rank.names(f"{group}\t{user_place()}"))
    rank.emit(kind, Phase.BEGIN, *event)
    return event


@harmless
def _end(kind: int, event: tuple[int, int, int, int] | None) -> None:
    rank = runtime.current()
    if rank is not None and event is not None:
        rank.emit(kind, Phase.END, *event)


def _observed(call: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    op = call.__name__

    @functools.wraps(call)
    def collective(*args: Any, **kwargs: Any) -> Any:
        global _inside
        if _inside or is_dynamo_compiling():
            return call(*args, **kwargs)
        event = _begin(int(kind), op, args, kwargs)
        _inside = True
        try:
            return call(*args, **kwargs)
        finally:
            _inside = False
            _end(int(kind), event)

    return collective


@contextlib.contextmanager
def collectives() -> Iterator[None]:
    """Wraps the public functions wherever torch itself exports them."""
    if not dist.is_available():
        yield
        return
    with ExitStack() as stack:
        for names, kind in ((COLLECTIVES + POINT_TO_POINT, Kind.COLLECTIVE), (GROUPS, Kind.PROCESS_GROUP)):
            for name in names:
                call = getattr(dist, name, None)
                if call is None:
                    continue
                observed = _observed(call, kind)
                for owner in (dist, dist.distributed_c10d):
                    if getattr(owner, name, None) is call:
                        stack.enter_context(replaced(owner, name, observed))
        yield

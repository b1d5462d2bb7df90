"""Calls into torch.distributed, with the user's line: the part that survives SIGKILL.

The flight recorder knows more (sequence numbers, what DDP issues from C++), but it dies with its process, and
gloo's leaves out send and recv. So these events also say who the peer is, and waiting for a Work is one of them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.collectives import async_handles
from nsadiag.worker.probes.collectives.call_details import (
    CREATIONS,
    RECEIVES,
    SENDS,
    argument,
    bounded,
    detail_of,
    group_in,
    rank_and_world,
)
from nsadiag.worker.probes.patch import STEPS_OUT, harmless, not_compiled, replaced, stands_for
from nsadiag.worker.recorder import Recorder

COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object",
    "all_gather_coalesced", "all_gather_single", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip
POINT_TO_POINT = (*SENDS, *RECEIVES, "batch_isend_irecv")
# What FSDP2 and DTensor issue, as they are named in torch.distributed._functional_collectives.
FUNCTIONAL = (
    "all_reduce", "all_reduce_coalesced", "all_gather_tensor", "all_gather_tensor_autograd",
    "all_gather_into_tensor_coalesced", "all_gather_single", "all_gather_single_autograd",
    "all_gather_single_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_autograd",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_single", "reduce_scatter_single_autograd",
    "reduce_scatter_single_coalesced", "all_to_all_single", "all_to_all_single_autograd", "broadcast",
    "permute_tensor", "wait_tensor",
)  # fmt: skip
GROUPS = (
    "init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group",
    "shrink_group", "destroy_process_group",
)  # fmt: skip
MAX_KEYS_SHOWN = 4
_TRANSFERS, _OF_GROUPS = frozenset(POINT_TO_POINT), frozenset(GROUPS)
# Plain integers, as in the recorder.
_COLLECTIVE, _GROUP, _BEGIN, _END = (
    int(Kind.COLLECTIVE), int(Kind.PROCESS_GROUP), int(Phase.BEGIN), int(Phase.END),
)  # fmt: skip

# A torch built without distributed has the module and not the class.
DeviceMesh: Any = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", ())

Event = tuple[int, int, int, int]  # name, a, b, c

# Called when a process group was created.
on_group: list[Callable[[], None]] = []
# Called as one begins: its name, group and number, what tells it from others, and the group itself.
on_begun: list[Callable[[str, str, int, str, Any], Any]] = []
# Called before a collective or transfer is issued, with its name and arguments.
on_issue: list[Callable[[str, tuple[Any, ...], dict[str, Any]], Any]] = []
# Called before one is destroyed: forked ranks run no exit handlers.
on_destroy: list[Callable[[], None]] = []
_counts: dict[str, Iterator[int]] = {}
# What each Work that a user holds came from. Weak: a Work keeps tensors alive.
_works: weakref.WeakKeyDictionary[Any, tuple[str, str, str, Event]] = weakref.WeakKeyDictionary()


class _Here(threading.local):
    """The calls of this thread; another one that issues collectives has its own."""

    inside = False  # a collective built from others is one call of the user's
    given_up: Event | None = None  # a wait that timed out


_here = _Here()


def group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return group_in(args, kwargs, (dist.ProcessGroup, DeviceMesh))


def group_name(group: Any) -> str:
    """Functional collectives also take a group by name, by mesh, or by mesh and dimension."""
    if group is None or isinstance(group, str):
        return group or "default_pg"
    if isinstance(group, tuple):
        group = group[0].get_group(group[1])
    elif isinstance(group, list):
        return str(group)
    elif isinstance(group, DeviceMesh):
        group = group.get_group()
    # As the flight recorder is read: its description, or its name where nobody described it.
    described = str(getattr(group, "group_desc", ""))
    return described if described not in ("", "undefined") else str(getattr(group, "group_name", "?"))


def _elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
    return sum(t.numel() for t in tensors)


def _counted_as(op: str, group: str) -> str:
    """The key by which calls are numbered: the nth collective of a group is the same on all its ranks, whatever they send."""
    if op in _OF_GROUPS:
        return "groups" if op in CREATIONS else f"{group} itself"
    return f"{group} transfers" if op in _TRANSFERS else group


def _rank_of(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorder | None:
    """The recorder; a process that joins a group by arguments, and not by its environment, tells here who it is."""
    if op != "init_process_group":
        return session.ensure_rank()
    told = rank_and_world(args, kwargs)
    return session.adopt_rank(*told) if told else session.ensure_rank()


@harmless
def _begin(
    kind: int, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str, Event] | None:
    rank = _rank_of(op, args, kwargs)
    if rank is None:
        return None
    if op == "batch_isend_irecv":
        ops = argument(args, kwargs, "p2p_op_list", 0)
        given, elements = ops[0].group, sum(each.tensor.numel() for each in ops)
    else:
        given, elements = group_of(args, kwargs), _elements(args, kwargs)
    group = group_name(given)
    key = _counted_as(op, group)
    counts = _counts.get(key) or _counts.setdefault(key, itertools.count(1))
    detail = detail_of(op, args, kwargs)
    event = (rank.names(op), next(counts), elements, rank.places.labelled(group, detail))
    rank.emit(kind, _BEGIN, *event)
    suppressed_exceptions.in_flight(op, group, event[1])
    for subscriber in on_begun:
        subscriber(op, group, event[1], detail, given)
    return group, detail, event


def _end(kind: int, event: Event) -> None:
    rank = session.recorded.rank
    if rank is not None:
        rank.emit(kind, _END, *event)


not_compiled(_end, what_it_calls=True)


@harmless
def _remember(
    op: str,
    result: Any,
    begun: tuple[str, str, Event],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    caller: FrameType,
) -> None:
    """Keeps in mind what a Work is of: `wait` is where a rank will stand. To be called with the frame that called."""
    group, detail, event = begun
    kind = dist.distributed_c10d.Work
    if isinstance(result, kind):
        _works[result] = (op, group, detail, event)
        if op != "isend":
            tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
            async_handles.started(result, op, group, event[1], event[3], tensors, caller)
        return
    works = result if isinstance(result, list) else [result]
    details = detail.split("; ")
    # A batch gives a Work for each of its operations, or one for all of them.
    each = details if len(details) == len(works) else [detail] * len(works)
    for work, own in zip(works, each, strict=True):
        if isinstance(work, kind):
            _works[work] = (op, group, own, event)


@harmless
def _tell(subscribers: list[Callable[[], None]]) -> None:
    for subscriber in subscribers:
        subscriber()


def _observed(
    call: Callable[..., Any], kind: int, is_traced: Callable[[], bool] = torch.compiler.is_compiling
) -> Callable[..., Any]:
    op = call.__name__
    ends = op == "destroy_process_group"

    @stands_for(call)
    def collective(*args: Any, **kwargs: Any) -> Any:
        # Dynamo folds this test, so that what it traces is the original alone.
        if is_traced() or _here.inside:
            return call(*args, **kwargs)
        if ends:
            _tell(on_destroy)
        begun = _begin(kind, op, args, kwargs)
        for subscriber in on_issue:
            subscriber(op, args, kwargs)
        _here.inside = True
        try:
            result = call(*args, **kwargs)
        except Exception as error:
            suppressed_exceptions.left(error, op)
            raise
        finally:
            _here.inside = False
            if begun is not None:
                _end(kind, begun[2])
        if begun is not None and result is not None:
            _remember(op, result, begun, args, kwargs, sys._getframe(STEPS_OUT))
        if kind == _GROUP and not ends:
            _tell(on_group)
        return result

    return collective


def _begin_waiting(op: str, number: int, elements: int, group: str, detail: str) -> Event | None:
    """A wait that timed out and is tried again is one wait: a rank that polls must not look as if it moved."""
    # A launcher and its agent use stores too, and are no ranks: only a rank that is open is told.
    rank = session.recorded.rank
    if rank is None:
        return None
    event = (rank.names(op), number, elements, rank.places.labelled(group, detail))
    given_up = _here.given_up
    if event != given_up:
        if given_up is not None:
            rank.emit(_COLLECTIVE, _END, *given_up)
        rank.emit(_COLLECTIVE, _BEGIN, *event)
        suppressed_exceptions.in_flight(op, group, number)
    _here.given_up = event
    return event


def _end_waiting(event: Event | None) -> None:
    if event is not None:
        _here.given_up = None
        _end(_COLLECTIVE, event)


@harmless
def _begin_wait(work: Any) -> Event | None:
    op, group, detail, issued = _works.get(work) or ("work", "", "", (0, 0, 0, 0))
    return _begin_waiting(f"{op}.wait", issued[1], issued[2], group, detail)


@harmless
def _begin_store(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event | None:
    keys = args[0] if args else next(iter(kwargs.values()), "")
    shown = " ".join(map(str, keys[:MAX_KEYS_SHOWN])) if isinstance(keys, list) else str(keys)
    return _begin_waiting(f"store.{op}", 0, 0, "store", bounded(f"key={mask_text(shown)}"))


# The next three are named as what they replace: C++ that we call looks for an override in Python, and
# pybind11 knows by the name and the first argument of the calling frame that it is in one already.
def _observed_work_wait(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _here.inside:
            return call(self, *args, **kwargs)
        async_handles.mark_waited(self)
        event = _begin_wait(self)
        result = call(self, *args, **kwargs)
        _end_waiting(event)
        return result

    return wait


def _observed_store_wait(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.inside:
            return call(self, *args, **kwargs)
        event = _begin_store("wait", args, kwargs)
        result = call(self, *args, **kwargs)
        _end_waiting(event)
        return result

    return wait


def _observed_store_get(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.inside:
            return call(self, *args, **kwargs)
        event = _begin_store("get", args, kwargs)
        result = call(self, *args, **kwargs)
        _end_waiting(event)
        return result

    return get


def _wrap_public(stack: ExitStack) -> None:
    """The public functions, wherever torch itself exports them."""
    for names, kind in ((COLLECTIVES + POINT_TO_POINT, _COLLECTIVE), (GROUPS, _GROUP)):
        for name in names:
            call = getattr(dist, name, None)
            if call is None:
                continue
            stack.enter_context(replaced(dist, name, _observed(call, kind)))


def _wrap_functional(stack: ExitStack) -> None:
    functional = sys.modules["torch.distributed._functional_collectives"]
    # These also run under fake tensors, whose sizes may be symbols that must not be asked for their value.
    is_traced = functional._are_we_tracing
    for name in FUNCTIONAL:
        call = getattr(functional, name, None)
        if call is not None:
            observed = _observed(call, _COLLECTIVE, is_traced)
            stack.enter_context(replaced(functional, name, observed))


def _all_subclasses(kind: Any) -> list[Any]:
    """Subclasses in Python: a group that is written in Python has a Work of its own."""
    return [below for each in kind.__subclasses__() for below in (each, *_all_subclasses(each))]


@contextlib.contextmanager
def collectives() -> Iterator[None]:
    """Calls into torch.distributed: collectives, send and recv with their peers, waits for a Work or a store."""
    if not dist.is_available():
        yield
        return
    with ExitStack() as stack:
        _wrap_public(stack)
        work, store = dist.distributed_c10d.Work, dist.distributed_c10d.Store
        for kind in (work, *_all_subclasses(work)):
            if "wait" in vars(kind):
                stack.enter_context(replaced(kind, "wait", _observed_work_wait(kind.wait)))
            async_handles.observe(stack, kind)
        stack.enter_context(replaced(store, "wait", _observed_store_wait(store.wait)))
        stack.enter_context(replaced(store, "get", _observed_store_get(store.get)))
        when_imported("torch.distributed._functional_collectives", lambda: _wrap_functional(stack))
        yield

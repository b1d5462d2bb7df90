"""Handles of asynchronous collectives that the user's own code started: which were never waited for.

A handle that was dropped, or is still open when the optimizer has used the gradients, means that they were read
while they were being reduced. Torch's own code knows what it does: only calls from the user's lines count.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.place import is_user_code
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.recorder import Recorder

MOST_OPEN = 4096
MOST_REPORTS = 64
# What counts as having looked after it: whoever asks whether it is done, or hands on its future, knows of it.
ASKED = (
    "is_completed",
    "is_success",
    "synchronize",
    "result",
    "get_future",
    "get_future_result",
    "block_current_stream",
)


@dataclass(kw_only=True, eq=False)
class Handle:
    """One call with async_op=True, and what became of it."""

    op: str
    group: str
    number: int
    label: int  # the number of the name that has its place
    step: int
    memory: tuple[tuple[int, StorageWeakRef], ...]  # the address and the storage of each tensor it was handed
    work: weakref.ref[Any] | None = None
    dropped: bool = False


opened: dict[int, Handle] = {}  # open ones; by the address of its Work, or of itself once that is gone
_reports = 0


def _memory_of(tensors: Iterable[Any]) -> tuple[tuple[int, StorageWeakRef], ...]:
    """The address and the storage of each, none of which is kept: memory that is freed may be a gradient's a moment later."""
    with torch._C.DisableTorchFunction():  # a question of ours is none of a tensor subclass's
        return tuple(
            (t.data_ptr(), StorageWeakRef(t.untyped_storage()))
            for t in tensors
            if isinstance(t, torch.Tensor)
        )


def _gradients_at(parameters: Mapping[str, torch.Tensor]) -> dict[int, str]:
    """The parameter whose gradient lies at an address.

    Of parameters that the calling thread trains: the gradient of another thread's may be replaced by its backward right now.
    """
    with torch._C.DisableTorchFunction():
        gradients = ((name, parameter.grad) for name, parameter in parameters.items())
        return {
            g.data_ptr(): name for name, g in gradients if g is not None and not hasattr(g, "_local_tensor")
        }


def started(
    work: Any, op: str, group: str, number: int, label: int, tensors: Iterable[Any], caller: FrameType
) -> None:
    """To be called with the frame that called the collective, and the number of the name that has its place.

    Raises: whatever goes wrong in it; its caller is guarded.
    """
    rank = session.current()
    if rank is None or not is_user_code(caller.f_code) or len(opened) >= MOST_OPEN:
        return
    handle = Handle(
        op=op,
        group=group,
        number=number,
        label=label,
        step=rank.box.step,
        memory=_memory_of(tensors),
    )
    key = id(work)
    handle.work = weakref.ref(work, functools.partial(_gone, key, handle))
    opened[key] = handle


def _gone(key: int, handle: Handle, _reference: Any) -> None:
    if opened.get(key) is handle:
        del opened[key]
        handle.dropped = True
        if len(opened) < MOST_OPEN:
            opened[id(handle)] = handle


def mark_waited(work: Any) -> None:
    """It was waited for, or asked."""
    if opened:
        opened.pop(id(work), None)


@harmless
def report(rank: Recorder, stepped: Mapping[str, torch.Tensor], before: set[int]) -> None:
    """After an optimizer's step over the parameters `stepped`, by name: those in `before` that nobody waited for."""
    global _reports
    gradients = _gradients_at(stepped)
    for key, handle in list(opened.items()):
        held = (gradients.get(address) for address, storage in handle.memory if not storage.expired())
        parameter = next(filter(None, held), None)
        if id(handle) not in before or (parameter is None and not handle.dropped):
            continue
        del opened[key]
        _reports += 1
        if _reports <= MOST_REPORTS:
            append_json_line(
                rank.directory.unwaited,
                {
                    "op": handle.op,
                    "group": handle.group,
                    "number": handle.number,
                    "place": _place_of(rank, handle.label),
                    "issued_step": handle.step,
                    "step": rank.box.step,
                    "dropped": handle.dropped,
                    "parameter": parameter,
                },
            )


def _place_of(rank: Recorder, label: int) -> str:
    """`file:line:function`, "" where there was no room for the name."""
    return rank.names.by_number().get(label, "\t").split("\t")[1]


def now_open() -> set[int]:
    """Those that were started before the optimizer's step begins."""
    return {id(handle) for handle in opened.values()}


def _observed(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark_waited(self)
        return call(self, *args, **kwargs)

    # pybind11 tells by the name of the calling frame that it is in an override already.
    asked.__code__ = asked.__code__.replace(co_name=name)
    return stands_for(call)(asked)


def observe(stack: ExitStack, work: type) -> None:
    """Follows what is asked of a Work, until the stack is left."""
    for name in ASKED:
        call = vars(work).get(name)
        if call is not None:
            stack.enter_context(replaced(work, name, _observed(call, name)))
    stack.callback(opened.clear)

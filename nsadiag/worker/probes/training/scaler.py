"""A gradient scaler's steps: where the loop waits for the device to say whether a gradient overflowed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.patch import harmless, replaced, stands_for

UNKNOWN = -1


class _Here(threading.local):
    stepped = False  # the optimizer's own step has begun


class _Hook:
    """In place from the first scaler's first step on: other jobs do without it."""

    handle: Any = None

    def close(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


_here, _hook = _Here(), _Hook()


def _note_step(*_: Any) -> None:
    if not torch.compiler.is_dynamo_compiling():
        _here.stepped = True


def _scale_of(scaler: Any) -> int:
    """The scale, 0 where only the device knows it: asking would make the loop wait once more."""
    scale = getattr(scaler, "_scale", None)
    if scale is None:
        return int(getattr(scaler, "_init_scale", 0))
    return int(scale.item()) if scale.device.type == "cpu" else 0


def _skipped(scaler: Any, optimizer: Any) -> int:
    """1 or 0; UNKNOWN where a fused optimizer decides on the device, or where it is not torch's."""
    if not _here.stepped:
        return 1 if isinstance(optimizer, torch.optim.Optimizer) else UNKNOWN
    if not getattr(optimizer, "_step_supports_amp_scaling", False) or not scaler.is_enabled():
        return 0
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    return int(any(f.item() for f in found)) if all(f.device.type == "cpu" for f in found) else UNKNOWN


@harmless
def _begin(scaler: Any, optimizer: Any) -> tuple[int, int] | None:
    rank = session.current()
    if rank is None:
        return None
    if _hook.handle is None:
        _hook.handle = register_optimizer_step_pre_hook(_note_step)
    _here.stepped = False
    name, scale = rank.names(type(optimizer).__name__), _scale_of(scaler)
    rank.emit(Kind.SCALER, Phase.BEGIN, name, 0, scale, rank.names("\t" + user_place()))
    return name, scale


@harmless
def _end(scaler: Any, optimizer: Any, event: tuple[int, int]) -> None:
    rank = session.current()
    if rank is not None:
        name, scale = event
        rank.emit(Kind.SCALER, Phase.END, name, _skipped(scaler, optimizer), scale)


def _observed(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return call(self, optimizer, *args, **kwargs)
        event = _begin(self, optimizer)
        # Not in a `finally`: a step that raised was neither done nor skipped.
        result = call(self, optimizer, *args, **kwargs)
        if event is not None:
            _end(self, optimizer, event)
        return result

    return step


@contextlib.contextmanager
def scaler() -> Iterator[None]:
    """GradScaler.step: the scale, and whether the optimizer's step was skipped."""
    from torch.amp.grad_scaler import GradScaler

    # torch.cuda.amp's and FSDP1's scalers inherit it.
    with replaced(GradScaler, "step", _observed(GradScaler.step)):
        try:
            yield
        finally:
            _hook.close()

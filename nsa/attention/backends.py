"""The choice of the attention implementation, and a count of those that ran."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention import triton_backend
from nsa.attention.inputs import Call
from nsa.attention.reference import reference_attention
from nsa.attention.torch_backend import torch_attention
from nsa.config import ConfigError
from nsa.specimens import sequential_attention


@dataclass(frozen=True, kw_only=True)
class BackendUse:
    """Calls so far in this process by backend, and fallbacks by "wanted -> used: reason"."""

    calls: dict[str, int]
    fallbacks: dict[str, int]


class BackendCounter:
    """Counts calls and fallbacks; any thread may count or read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()

    def called(self, backend: str) -> None:
        """Count a call that `backend` answered."""
        with self._lock:
            self._calls[backend] += 1

    def fell_back(self, wanted: str, used: str, reason: str) -> None:
        """Count a call that fell back from `wanted` to `used`."""
        with self._lock:
            self._fallbacks[f"{wanted} -> {used}: {reason}"] += 1

    def snapshot(self) -> BackendUse:
        """The counts so far."""
        with self._lock:
            return BackendUse(calls=dict(self._calls), fallbacks=dict(self._fallbacks))


COUNTER = BackendCounter()


def backends_used() -> BackendUse:
    """The backends that ran in this process, and the fallbacks from one to another.

    Calls inside a compiled graph are not counted, as counting would break the graph.
    """
    return COUNTER.snapshot()


def _triton_or_torch(call: Call) -> Tensor:
    """The triton kernels, or the torch backend for calls that they do not support; such fallbacks are counted."""
    reason = triton_backend.unsupported(call.q, call.k, call.v, call.config)
    if reason is None:
        return triton_backend.triton_attention(call)
    if not torch.compiler.is_compiling():
        COUNTER.fell_back("triton", "torch", reason)
    return torch_attention(call)


BACKENDS: dict[str, Callable[[Call], Tensor]] = {
    "torch": torch_attention,
    "sequential": sequential_attention,
    "reference": reference_attention,
    "triton": _triton_or_torch,
}


def resolve_backend(name: str, device: torch.device) -> str:
    """The backend that `name` means on `device`; ConfigError for one that is not available there.

    "auto" is triton on a GPU where triton is installed, else torch.
    """
    if name == "auto":
        return "triton" if device.type == "cuda" and triton_backend.can_run_on(device) else "torch"
    if name not in BACKENDS or (name == "triton" and not triton_backend.can_run_on(device)):
        raise ConfigError(
            f"attention backend {name!r} is not available on {device}: "
            f"choose auto or one of {', '.join(BACKENDS)}"
            + (" (triton needs a GPU and the package triton)" if name == "triton" else "")
        )
    return name

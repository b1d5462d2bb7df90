"""The choice of the attention implementation, and a count of those that ran."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsa.attention import triton_backend
from nsa.attention.counter import COUNTER, BackendUse
from nsa.attention.inputs import Call
from nsa.attention.reference import reference_attention
from nsa.attention.torch_backend import torch_attention
from nsa.config import ConfigError
from nsa.specimens import sequential_attention


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

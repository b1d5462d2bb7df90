"""flash-attn's own kernels for dense attention, by the function that its packages publish, `flash_attn_func`.

Not through torch's registry (`torch.nn.attention.activate_flash_attention_impl`): it calls what is private to flash-attn-4, whose
releases from 4.0.0b20 on return more than torch 2.11 and 2.13 take.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from nsa.config import ConfigError

# The fastest first: the module that publishes `flash_attn_func`, and the compute capability from which it trains
# (flash-attn-4 has no backward pass for an A100).
_KERNELS = {
    "FA4": ("flash_attn.cute", 9),
    "FA3": ("flash_attn_interface", 9),
    "FA2": ("flash_attn.flash_attn_interface", 8),
}
_INSTALL = (
    "pip install --pre flash-attn-4 for an H100 or newer, flash-attn for an A100; or leave model.flash out"
)
_MOST_DIM, _DIM_STEP = 256, 8


def installed() -> list[str]:
    """The kernels of flash-attn that are installed, of "FA4", "FA3" and "FA2"."""
    return [name for name, (module, _) in _KERNELS.items() if _is_there(module)]


def chosen() -> str:
    """The fastest kernels installed that this GPU can train by; ConfigError without a GPU, and without any."""
    if not torch.cuda.is_available():
        raise ConfigError("model.flash is true, and there is no GPU", "leave model.flash out")
    found, (major, _) = installed(), torch.cuda.get_device_capability()
    if not found:
        raise ConfigError("model.flash is true, and flash-attn is not installed", _INSTALL)
    for name in found:
        if major >= _KERNELS[name][1]:
            _function(name)
            return name
    raise ConfigError(
        f"model.flash is true, and {found[0]} cannot train on {torch.cuda.get_device_name()}", _INSTALL
    )


def unsupported(q: Tensor, v: Tensor) -> str | None:
    """The reason why flash-attn does not support these queries and values [B, T, H, D]; None if it does."""
    dims = q.shape[3], v.shape[3]
    if q.device.type != "cuda":
        return f"on {q.device.type}"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return str(q.dtype)
    if max(dims) > _MOST_DIM:
        return f"a head dim above {_MOST_DIM}"
    if any(dim % _DIM_STEP for dim in dims):
        return f"a head dim that {_DIM_STEP} does not divide"
    return "head dims that differ" if dims[0] != dims[1] else None


def attend(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q [B, T, H, D] to k, v [B, T, Hkv, D] by the kernels of that name; returns [B, T, H, D].

    `torch.compile` leaves the call as it is, which is a break of its graph.
    """
    out = _function(name)(q, k, v, causal=True)
    return out[0] if isinstance(out, tuple) else out  # some releases return the log-sum-exp beside it


@functools.cache
def _function(name: str) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    module = _KERNELS[name][0]
    try:
        return torch.compiler.disable(importlib.import_module(module).flash_attn_func)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        raise ConfigError(f"model.flash is true, and {module} does not load: {error}", _INSTALL) from None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # its package is not there, or is broken
        return False

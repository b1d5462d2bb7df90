"""flash-attn's kernels for dense attention, through the registry of torch (`torch.nn.attention.activate_flash_attention_impl`)."""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

from nsa.config import ConfigError

# By the name that torch knows them by, the best first: the module that has each.
_MODULES = {"FA4": "flash_attn.cute", "FA3": "flash_attn_interface"}
_INSTALL = "pip install --pre flash-attn-4 on a machine with an H100 or newer, or leave model.flash out"
_MOST_DIM = 256


def installed() -> str | None:
    """The flash-attn that is installed: "FA4", "FA3", or None."""
    return next((name for name, module in _MODULES.items() if _is_there(module)), None)


@functools.cache
def activate() -> str:
    """Have SDPA's flash kernels be those of the flash-attn that is installed, in this whole process; returns its name.

    ConfigError without a GPU, without flash-attn, and for a torch that does not know it.
    """
    name = installed()
    if not torch.cuda.is_available():
        raise ConfigError("model.flash is true, and there is no GPU", "leave model.flash out")
    if name is None:
        raise ConfigError("model.flash is true, and flash-attn is not installed", _INSTALL)
    try:
        torch.nn.attention.activate_flash_attention_impl(name)
    except (AttributeError, ValueError, ImportError, RuntimeError) as error:
        raise ConfigError(f"torch {torch.__version__} cannot use {name}: {error}", _INSTALL) from None
    return name


def unsupported(q: Tensor, v: Tensor) -> str | None:
    """The reason why flash-attn does not support these queries and values [B, T, H, D]; None if it does."""
    if q.device.type != "cuda":
        return f"on {q.device.type}"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return str(q.dtype)
    if max(q.shape[3], v.shape[3]) > _MOST_DIM:
        return f"a head dim above {_MOST_DIM}"
    return None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not
        return False

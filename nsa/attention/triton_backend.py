"""Backend "triton": where it can run, and which calls fall back to the torch backend. Triton is imported when used."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nsa.attention.inputs import BranchKV, Call, keys_read
from nsa.config import AttentionConfig

# Module constants, so that torch.compile does not trace how they are found.
_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton runs on a CPU, for tests
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def can_run_on(device: torch.device) -> bool:
    """Whether triton is installed and compiles for `device`, or interprets there."""
    return _INSTALLED and (device.type == "cuda" or (device.type == "cpu" and _INTERPRETED))


def unsupported(q: Tensor, k: BranchKV, v: BranchKV, config: AttentionConfig) -> str | None:
    """The reason why the kernels do not support this call; None if they do."""
    keys = [getattr(k, branch) for branch in keys_read(config)]
    values = [getattr(v, branch) for branch in config.branches]
    if q.dtype not in _DTYPES:
        return str(q.dtype)
    if q.dtype == torch.bfloat16 and _INTERPRETED:
        return "bf16 under the interpreter, which computes it wrongly"
    if len({x.shape[2] for x in keys}) > 1:
        return "branches with different numbers of KV heads"
    if max(x.shape[3] for x in (*keys, *values)) > 256:
        return "a head dim above 256"
    if q.shape[0] * keys[0].shape[2] * q.shape[1] * config.select_count >= 2**31:
        return "2^31 selections or more"
    if config.select_block > 128:
        return "a select_block above 128"
    if config.compress_block > config.select_block + config.compress_stride:
        return "compression blocks that span more than a selection block and a stride"
    return None


def cannot_decode(q: Tensor, k: BranchKV, v: BranchKV, config: AttentionConfig) -> str | None:
    """The reason why the decode kernels do not support these queries and caches; None if they do."""
    if len(config.branches) < len(k):
        return "decoding with some of the branches"
    if config.select_count > 128:
        return "decoding with more than 128 selected blocks"
    return unsupported(q, k, v, config)


def check_no_tangents() -> None:
    """Raise NotImplementedError under forward-mode differentiation, whose tangents custom operators drop without an error."""
    if forward_ad._current_level >= 0:  # also under torch.func.jvp, jacfwd and linearize
        raise NotImplementedError(
            "the triton kernels have no forward-mode derivative: give backend='torch' within "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or use reverse mode (vjp, jacrev)"
        )


def triton_attention(call: Call) -> Tensor:
    """Eq. 5 by the kernels; NotImplementedError under forward-mode differentiation."""
    check_no_tangents()
    from nsa.attention.kernels.ops import attend

    return attend(call)

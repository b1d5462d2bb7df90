

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotate x [B, T, H, D] by `positions`, [T] or [B, T]; dtype and shape stay. ValueError if D is odd.

    Angles are fp64 and the rotation at least fp32: an fp32 angle at position 65,000 is off by 0.004.
    """
    dim = x.shape[-1]
    if dim % 2:
        raise ValueError(f"rotary embedding turns pairs, so the head dim must be even; it is {dim}")
    wide = torch.promote_types(x.dtype, torch.float32)
    exponents = torch.arange(0, dim, 2, device=x.device, dtype=torch.float64) / dim
    angles = positions[..., None, None] * base**-exponents  # [(B,) T, 1, D/2]
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    first, second = x.to(wide).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

"""Floating point operations of training, and the peak of GPUs, for the model FLOPs utilisation (MFU)."""

from __future__ import annotations

import torch

from nsa.config import TrainConfig

# Dense bf16 operations per second, from NVIDIA's data sheets.
_PEAKS = (("B200", 2.25e15), ("H200", 989e12), ("H100", 989e12), ("A100", 312e12))


def flops_per_token(config: TrainConfig, parameters: int) -> float:
    """Operations of forward and backward per token: 6 per parameter and, per head channel, 12 per key that a query sees; without recomputation."""
    model, attention, n_tokens = config.model, config.attention, config.data.seq_len
    mean_past = (n_tokens + 1) / 2
    if model.attention == "dense":
        keys = mean_past
    else:
        selected = attention.select_count * attention.select_block
        seen = {
            "compressed": mean_past / attention.compress_stride,
            "selected": min(mean_past, selected),
            "sliding": min(mean_past, attention.window),
        }
        keys = sum(seen[branch] for branch in attention.branches)
    return 6 * parameters + 12 * model.layers * model.heads * model.head_dim * keys


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 operations per second of the device; None if unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in _PEAKS if known in name), None)

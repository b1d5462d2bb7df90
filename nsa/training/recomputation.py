"""Activation checkpointing: blocks that are recomputed in the backward pass, to save memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsa.model import NSAModel, run_in_order
from nsa.specimens import recompute_late_bound

Hidden = tuple[Tensor, Tensor | None]  # hidden states, and the borders of packed sequences


def apply_activation_checkpointing(
    model: NSAModel, mode: str, *, reentrant: bool = False, binding: str = "early"
) -> None:
    """Recompute in the backward pass every block (`full`), every other one (`selective`) or none.

    `binding="late"` is a bug on purpose (`nsa.specimens`): without `reentrant` every block but the last gets wrong
    gradients silently; with it DDP fails because the last block's parameters are marked ready twice.
    """
    walk = {"early": _recompute_early_bound, "late": recompute_late_bound}[binding]
    every = {"none": 0, "selective": 2, "full": 1}[mode]
    model.run_blocks = partial(_when_training, walk, every, reentrant) if every else run_in_order


def _when_training(
    walk: Callable[..., Tensor],
    every: int,
    reentrant: bool,
    blocks: Iterable[nn.Module],
    x: Tensor,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    if not torch.is_grad_enabled():
        return run_in_order(blocks, x, cu_seqlens)
    return walk(blocks, (x, cu_seqlens), every, reentrant)


def _recompute_early_bound(blocks: Iterable[nn.Module], x: Hidden, every: int, reentrant: bool) -> Tensor:
    out, cu_seqlens = x
    for index, block in enumerate(blocks):
        if index % every == 0:
            # Blocks are deterministic, so random states need not be saved.
            out = checkpoint(block, out, cu_seqlens, use_reentrant=reentrant, preserve_rng_state=False)
        else:
            out = block(out, cu_seqlens)
    return out

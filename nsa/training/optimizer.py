"""AdamW, its weight decay by parameter, and its learning rate by step."""

from __future__ import annotations

import math

import torch
from torch import nn

from nsa.config import OptimizerConfig, TrainConfig
from nsa.parallel import plain_name


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate at `step` (from 1) of `steps`: linear warm-up, then half a cosine down to min_lr_ratio.

    With the schedule "wsd" it is constant until the last `decay_share` of the steps, in which it falls linearly to
    min_lr_ratio (Hu et al., arXiv 2404.06395): a run can be continued from any checkpoint before them.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "wsd":
        decaying = max(1.0, config.decay_share * steps)
        left = min(1.0, (steps - step) / decaying)
        return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * left)
    share_done = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * share_done))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)


def build_optimizer(
    model: nn.Module, config: TrainConfig, decayed: set[str], device: torch.device
) -> torch.optim.AdamW:
    """AdamW that decays the parameters named in `decayed`: matrices, and not norms and biases."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[plain_name(name) in decayed].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": config.optimizer.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=config.optimizer.lr,
        betas=config.optimizer.betas,
        fused=device.type == "cuda",
        capturable=config.train.cuda_graph,
    )

"""A model with sparse attention learns to copy by content what lies behind its window."""

from __future__ import annotations

import pytest
import torch

from nsa.config import AttentionConfig, ModelConfig
from nsa.model import NSAModel

LENGTH, WINDOW = 64, 16
ATTENTION = {
    "window": WINDOW,
    "compress_block": 8,
    "compress_stride": 4,
    "select_block": 8,
    "select_count": 5,  # of eight
    "backend": "torch",
}


def repeated(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens that begin again after a period [rows, 1], which no model can know before."""
    period = torch.randint(WINDOW + 4, WINDOW + 17, (rows, 1), generator=generator)
    tokens = torch.randint(1, 32, (rows, LENGTH), generator=generator)
    return tokens.gather(1, torch.arange(LENGTH + 1)[None] % period), period


@torch.no_grad()
def copied(model: NSAModel) -> float:
    """The share of right tokens, of those that the ones before determine; 0.03 by chance."""
    tokens, period = repeated(64, torch.Generator().manual_seed(2))
    right = model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]
    return right[torch.arange(1, LENGTH + 1)[None] >= period + 2].float().mean().item()


@pytest.mark.slow
def test_what_lies_behind_the_window_is_copied_after_a_few_hundred_steps():
    torch.manual_seed(0)
    sizes = {"layers": 2, "dim": 64, "heads": 4, "kv_groups": 2, "head_dim": 16}
    model = NSAModel(ModelConfig(vocab_size=32, **sizes), AttentionConfig(**ATTENTION))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50)
        tokens, _ = repeated(32, generator)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49 and copied(model) > 0.8:
            return
    assert copied(model) > 0.8

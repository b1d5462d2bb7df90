"""Dropout off: which elements it drops depends on the shape of a batch, so that no two splits of one drop the same."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

DROPPING = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


class Seen:
    """A note that something would have been dropped since the last step."""

    dropout = False


seen = Seen()


def install() -> None:
    """From here on nothing is dropped."""
    for name in DROPPING:
        setattr(functional, name, _off(getattr(functional, name)))
    torch.dropout = _off(torch.dropout)
    attention = functional.scaled_dot_product_attention

    @functools.wraps(attention)
    def without(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **more: Any) -> Any:  # fmt: skip
        seen.dropout |= dropout_p > 0
        return attention(query, key, value, attn_mask, 0.0, *args, **more)

    functional.scaled_dot_product_attention = without
    init = torch.nn.RNNBase.__init__

    @functools.wraps(init)
    def rnn(self: Any, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        seen.dropout |= bool(self.dropout)
        self.dropout = 0.0

    torch.nn.RNNBase.__init__ = rnn


def _off(original: Any) -> Any:
    @functools.wraps(original)
    def kept(input: torch.Tensor, p: float = 0.5, *args: Any, **more: Any) -> torch.Tensor:
        training = more.get("training", more.get("train", args[0] if args else True))
        seen.dropout |= bool(training) and p > 0
        return input

    return kept

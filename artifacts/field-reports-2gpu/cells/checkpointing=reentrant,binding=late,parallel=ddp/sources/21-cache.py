

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.blocks import n_compress_slots
from nsa.attention.inputs import BranchKV
from nsa.config import AttentionConfig


class NSACache:
    """State of the three branches for rows of equal length; grows by each chunk of tokens, of any size.

    It holds the compressed keys and values, the raw ones that no complete block covers yet, all tokens of the
    selected branch, and the last w - 1 tokens of the sliding one. Batch rows advance together.
    """

    def __init__(self, config: AttentionConfig) -> None:
        self.length = 0  # tokens seen
        self._config = config
        self._pending: tuple[Tensor | None, ...] = (None, None, None)
        self.keys = BranchKV(None, None, None)
        self.values = BranchKV(None, None, None)

    def await_blocks(
        self, k: Tensor, v: Tensor | None, positions: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Put the raw tokens that await compression before new ones; keep those the next block will need.

        k and v are [B, T, Hkv, D], positions [B or 1, T]. What comes back begins at the first token of the
        next block: compress it as if it were a whole sequence.
        """
        k, v, positions = (_join(old, new) for old, new in zip(self._pending, (k, v, positions), strict=True))
        n_blocks = n_compress_slots(self._config, k.shape[1], packed=False)
        done = n_blocks * self._config.compress_stride
        self._pending = tuple(x if x is None else x[:, done:] for x in (k, v, positions))
        return k, v, positions

    def append(self, n_tokens: int, keys: BranchKV, values: BranchKV) -> tuple[BranchKV, BranchKV]:
        """Add n_tokens new tokens and the blocks they completed; return all keys and values to attend to."""
        self.length += n_tokens
        keys, values = _join_branches(self.keys, keys), _join_branches(self.values, values)
        self.keys, self.values = self._last_window(keys), self._last_window(values)
        return keys, values

    def _last_window(self, kv: BranchKV) -> BranchKV:
        if kv.sliding is None:
            return kv
        gone = max(0, kv.sliding.shape[1] - (self._config.window - 1))
        return kv._replace(sliding=kv.sliding[:, gone:])


class DenseCache:
    """All keys and values, [B, S, Hkv, D], of a dense attention layer."""

    def __init__(self) -> None:
        self.length = 0
        self._kv: tuple[Tensor | None, Tensor | None] = (None, None)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new tokens; return all keys and values to attend to."""
        self.length += k.shape[1]
        self._kv = (_join(self._kv[0], k), _join(self._kv[1], v))
        return self._kv


def _join(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return new if old is None else torch.cat([old, new], dim=1)


def _join_branches(old: BranchKV, new: BranchKV) -> BranchKV:
    return BranchKV(*(_join(a, b) for a, b in zip(old, new, strict=True)))

"""Caches of the keys and values of earlier tokens, one per attention layer.

`NSACache` grows by chunks of any size. `DecodeCache`, and `DenseDecodeCache` of the dense control, take a prompt and then
a token a step, at fixed addresses, so that a step can be recorded as a CUDA graph; their rows may differ in length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nsa.attention.blocks import n_compress_slots
from nsa.attention.inputs import BranchKV
from nsa.config import AttentionConfig

ROOM = 256  # free tokens of a new cache that grows; a full one doubles its size


class NSACache:
    """State of the three branches for rows of equal length; grows by each chunk of tokens, of any size.

    It holds the compressed keys and values, the raw ones that no complete block covers yet, all tokens of the
    selected branch, and the last w - 1 tokens of the sliding one. All rows of a batch grow together.
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
        """Return the raw tokens that are not compressed yet, followed by the new ones; keep those that later blocks need.

        k and v are [B, T, Hkv, D], positions [B or 1, T]. The result begins at the first token of the next block,
        so it can be compressed as if it were a whole sequence.
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


class Rows:
    """The number of tokens in each row of a batch: one tensor, shared by the caches of all layers."""

    def __init__(self, lengths: Tensor, capacity: int, *, used: int | None = None) -> None:
        """Rows of `lengths` [B] in caches of `capacity` tokens.

        `used` is the padded length of the rows, which `reserve` counts on from; by default the capacity.
        """
        self.lengths = lengths  # int64 [B], on the device
        self.capacity = capacity
        self.used = capacity if used is None else used
        self.index = torch.arange(len(lengths), device=lengths.device)

    @classmethod
    def that_grow(cls, lengths: Tensor, longest: int) -> Rows:
        """Rows of prompts that are padded to `longest` tokens, in caches that grow."""
        return cls(lengths, longest + ROOM, used=longest)

    def tokens(self, n: int) -> Tensor:
        """int64 [B, n]: the places of the next n tokens of each row."""
        return self.lengths[:, None] + torch.arange(n, device=self.lengths.device)

    def pick(self, index: Tensor) -> None:
        """Replace the rows by those that `index` names; a row may be named more than once (beam search)."""
        self.lengths = self.lengths[index]
        self.index = torch.arange(len(index), device=index.device)

    def reserve(self, n: int) -> bool:
        """Reserve n more tokens for the longest row; True if the capacity grew, and each cache has to `grow` too."""
        self.used += n
        if self.used <= self.capacity:
            return False
        self.capacity = max(self.used, 2 * self.capacity)
        return True


def one_by_one(
    new: Tensor,
    rows: Rows,
    caches: Sequence[DecodeCache | DenseDecodeCache],
    step: Callable[[Tensor], Tensor],
) -> Tensor:
    """Apply `step` to one after another of the next tokens [B, T, ...] of all rows, growing full caches: [B, T, ...]."""
    if rows.reserve(new.shape[1]):
        for cache in caches:
            cache.grow()
    outs = []
    for token in new.split(1, dim=1):
        outs.append(step(token))
        rows.lengths += 1
    return torch.cat(outs, dim=1)


class DecodeCache:
    """The decode cache of one Native Sparse Attention layer, of at most `rows.capacity` tokens a row.

    Compressed and selected keys and values have a slot for every block and token; the window, and the raw tokens
    that φ reads, are ring buffers. The layer's forward fills it with a prompt through the interface of an empty `NSACache`.
    """

    length = 0  # tokens before the prompt

    def __init__(self, config: AttentionConfig, rows: Rows, new_tokens: int = 1) -> None:
        self.config, self.rows, self.new_tokens = config, rows, new_tokens
        self.window_ring = config.window + new_tokens - 1
        self.raw_ring = config.compress_block + config.compress_stride + new_tokens
        self.raw: list[Tensor | None] = [None, None]
        self.keys = self.values = BranchKV(None, None, None)

    @property
    def positions(self) -> int:
        """The number of positions that keys may have, the last one of a block that is not complete included."""
        return max(self.rows.capacity, self.config.compress_block)

    def await_blocks(self, k: Tensor, v: Tensor | None, turn: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Keep the last raw tokens of the prompt; return the arguments, as there are no earlier ones."""
        self.raw = [x if x is None else as_ring(x, self.rows, self.raw_ring) for x in (k, v)]
        return k, v, turn

    def append(self, n_tokens: int, keys: BranchKV, values: BranchKV) -> tuple[BranchKV, BranchKV]:
        """Keep the right-padded rows of a prompt; return the arguments, as there are no earlier tokens."""
        self.keys, self.values = (
            x if x.sliding is None else x._replace(sliding=as_ring(x.sliding, self.rows, self.window_ring))
            for x in (keys, values)
        )
        self.grow()
        return keys, values

    def grow(self) -> None:
        """Extend the slots to `rows.capacity`."""
        self.keys, self.values = (
            BranchKV(
                *(x if x is None else _with_room(x, n) for x, n in zip(each[:2], self._sizes(), strict=True)),
                each.sliding,
            )
            for each in (self.keys, self.values)
        )

    def pick(self, index: Tensor) -> None:
        """Replace the rows as `Rows.pick` does; call both."""
        self.raw = [x if x is None else x[index] for x in self.raw]
        self.keys, self.values = (
            BranchKV(*(x if x is None else x[index] for x in each)) for each in (self.keys, self.values)
        )

    def _sizes(self) -> tuple[int, int]:
        n_slots = n_compress_slots(self.config, self.rows.capacity, packed=False)
        return max(1, n_slots), self.rows.capacity

    def write(self, keys: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        """Store new tokens [B, T, Hkv, D]; those of the compressed branch are the raw ones."""
        n_tokens = next(iter(values.values())).shape[1]
        if n_tokens > self.new_tokens:
            raise ValueError(f"{n_tokens} new tokens, but the cache has room for {self.new_tokens} at once")
        tokens, row = self.rows.tokens(n_tokens), self.rows.index[:, None]
        for kept, raw, new in zip((self.keys, self.values), self.raw, (keys, values), strict=True):
            places = {
                "selected": (kept.selected, tokens),
                "sliding": (kept.sliding, tokens % self.window_ring),
                "compressed": (raw, tokens % self.raw_ring),
            }
            for branch, x in new.items():
                into, place = places[branch]
                into[row, place] = x

    def newest_blocks(self, n_tokens: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Slots [B, T] of the newest complete block at each new token, and its raw keys and values [B, T, l, Hkv, D].

        Before the first block is complete that is slot 0, which no query sees yet.
        """
        length, stride = self.config.compress_block, self.config.compress_stride
        slots = ((self.rows.tokens(n_tokens) + 1 - length) // stride).clamp(min=0)
        within = torch.arange(length, device=slots.device)
        places = (slots[..., None] * stride + within) % self.raw_ring
        row = self.rows.index[:, None, None]
        k, v = (raw if raw is None else raw[row, places] for raw in self.raw)
        return slots, k, v

    def write_blocks(self, slots: Tensor, k: Tensor, v: Tensor | None) -> None:
        """Store compressed keys and values [B, T, Hkv, D] in their slots."""
        row = self.rows.index[:, None]
        self.keys.compressed[row, slots] = k
        if v is not None:
            self.values.compressed[row, slots] = v


class DenseDecodeCache:
    """All keys and values of a dense attention layer, at most `rows.capacity` tokens a row."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    @property
    def positions(self) -> int:
        """The number of positions that keys may have."""
        return self.rows.capacity

    def fill(self, k: Tensor, v: Tensor) -> None:
        """Keep the keys and values [B, T, Hkv, D] of a prompt."""
        self.k, self.v = (_with_room(x, self.rows.capacity) for x in (k, v))

    def write(self, k: Tensor, v: Tensor) -> None:
        """Store new tokens [B, T, Hkv, D]."""
        tokens, row = self.rows.tokens(k.shape[1]), self.rows.index[:, None]
        self.k[row, tokens], self.v[row, tokens] = k, v

    def grow(self) -> None:
        """Extend the slots to `rows.capacity`."""
        self.k, self.v = (_with_room(x, self.rows.capacity) for x in (self.k, self.v))

    def pick(self, index: Tensor) -> None:
        """Replace the rows as `Rows.pick` does; call both."""
        self.k, self.v = self.k[index], self.v[index]

    def visible(self, n_tokens: int) -> Tensor:
        """bool [B, 1, T, capacity]: the keys that each new token may attend to."""
        keys = torch.arange(self.rows.capacity, device=self.k.device)
        return (keys <= self.rows.tokens(n_tokens)[..., None])[:, None]


def _join(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return new if old is None else torch.cat([old, new], dim=1)


def _join_branches(old: BranchKV, new: BranchKV) -> BranchKV:
    return BranchKV(*(_join(a, b) for a, b in zip(old, new, strict=True)))


def _with_room(x: Tensor, n: int) -> Tensor:
    """x [B, S, Hkv, D] at the start of [B, n, Hkv, D]."""
    room = x.new_zeros(x.shape[0], n, *x.shape[2:])
    room[:, : x.shape[1]] = x
    return room


def as_ring(x: Tensor, rows: Rows, size: int) -> Tensor:
    """The last tokens of each row of x [B, S, Hkv, D]: [B, size, Hkv, D], token t in slot t % size."""
    slot = torch.arange(size, device=x.device)
    newest = rows.lengths[:, None] - 1
    token = (newest - (newest - slot) % size).clamp(
        min=0
    )  # unused slots hold an arbitrary token, which is never read
    return x[rows.index[:, None], token].contiguous()

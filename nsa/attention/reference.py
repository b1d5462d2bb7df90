"""Equations 5 to 12 of Native Sparse Attention (arXiv 2502.11089), one query and one head at a time.

The oracle of every backend: written to be compared with the paper by eye, in whatever dtype it is given.
Indices are 0-based where the paper's are 1-based, and the past includes the query's own token.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.compressed import BlockCompression
from nsa.attention.inputs import BRANCHES, Call
from nsa.config import AttentionConfig


class _Sequence(NamedTuple):
    """One sequence of a row."""

    start: int  # its first token
    end: int
    slots: range  # of its blocks among the compressed keys
    first_block: int  # how many selection blocks lie before it in the row


def reference_attention(call: Call) -> Tensor:
    """Eq. 5: the gated sum of attention over the branches."""
    q, k, v, gates, config, cu_seqlens, past_length = call
    batch, n_queries, n_heads, _ = q.shape
    n_tokens = past_length + n_queries
    sequences = _sequences(n_tokens, cu_seqlens, config)
    rows = []
    for b, i, h in itertools.product(range(batch), range(n_queries), range(n_heads)):
        t = past_length + i
        out = 0.0
        for branch in config.branches:
            keys, values = getattr(k, branch), getattr(v, branch)
            kv_head = h // (n_heads // keys.shape[2])
            if branch == "compressed":
                seen = _visible_slots(_of(t, sequences), t, config)
            elif branch == "selected":
                group = _group(q[b, i], kv_head, keys.shape[2])
                seen = _selected_tokens(group, k.compressed[b, :, kv_head], _of(t, sequences), t, config)
            else:
                dropped = n_tokens - keys.shape[1]  # tokens that a cache no longer holds
                oldest = max(_of(t, sequences).start, t - config.window + 1)
                seen = [s - dropped for s in range(oldest, t + 1)]
            gate = gates[b, i, h, BRANCHES.index(branch)]
            out = out + gate * _attend(q[b, i, h], keys[b, :, kv_head], values[b, :, kv_head], seen)
        rows.append(out)
    return torch.stack(rows).view(batch, n_queries, n_heads, -1).to(q.dtype)


def reference_selection(
    q: Tensor,
    k_compressed: Tensor,
    config: AttentionConfig,
    *,
    cu_seqlens: Tensor | None = None,
    past_length: int = 0,
) -> Tensor:
    """Eq. 8 to 12: what `select_blocks` must return, int64 [B, Hkv, T, n]."""
    batch, n_queries = q.shape[:2]
    n_kv_heads = k_compressed.shape[2]
    sequences = _sequences(past_length + n_queries, cu_seqlens, config)
    chosen = torch.full((batch, n_kv_heads, n_queries, config.select_count), -1)
    for b, h, i in itertools.product(range(batch), range(n_kv_heads), range(n_queries)):
        sequence = _of(past_length + i, sequences)
        group = _group(q[b, i], h, n_kv_heads)
        blocks = _selection(group, k_compressed[b, :, h], sequence, past_length + i, config)
        chosen[b, h, i, : len(blocks)] = torch.tensor(blocks) + sequence.first_block
    return chosen


def reference_compression(
    phi: BlockCompression, x: Tensor, config: AttentionConfig, *, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Eq. 7: φ of every block of every sequence of x [B, T, Hkv, D], in order: [B, blocks, Hkv, D]."""
    blocks = []
    for sequence in _sequences(x.shape[1], cu_seqlens, config):
        for i in range(len(sequence.slots)):
            first = sequence.start + i * config.compress_stride
            block = x[:, first : first + config.compress_block]  # [B, l, Hkv, D]
            blocks.append(phi.compress(block.transpose(1, 2)))
    return torch.stack(blocks, dim=1) if blocks else x[:, :0]


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: list[int]) -> Tensor:
    """softmax(q k / sqrt(d)) v over the keys in `seen`: q [Dqk], k and v [S, D]; 0 where there is none."""
    p = torch.softmax(k[seen] @ q / q.shape[-1] ** 0.5, dim=0)
    return p @ v[seen]


def _visible_slots(sequence: _Sequence, t: int, config: AttentionConfig) -> list[int]:
    """Slots of the compressed blocks that end at or before token t (Eq. 7)."""
    d, length = config.compress_stride, config.compress_block
    return [slot for i, slot in enumerate(sequence.slots) if sequence.start + i * d + length - 1 <= t]


def _selected_tokens(
    q_group: Tensor, k_compressed: Tensor, sequence: _Sequence, t: int, config: AttentionConfig
) -> list[int]:
    """Eq. 12: the tokens of the selected blocks, without those after token t."""
    tokens = []
    for block in _selection(q_group, k_compressed, sequence, t, config):
        first = sequence.start + block * config.select_block
        tokens += [s for s in range(first, first + config.select_block) if s <= t]
    return tokens


@torch.no_grad()
def _selection(
    q_group: Tensor, k_compressed: Tensor, sequence: _Sequence, t: int, config: AttentionConfig
) -> list[int]:
    """Eq. 8 to 11: the blocks of the sequence, counted from 0, that the queries [G, D] of a group select."""
    seen = _visible_slots(sequence, t, config)
    own = (t - sequence.start) // config.select_block
    importance = [0.0] * (own + 1)
    for q in q_group:  # Eq. 10: the heads of a group share their selection
        p_cmp = torch.softmax(k_compressed[seen] @ q / q.shape[-1] ** 0.5, dim=0)  # Eq. 8
        for j in range(own + 1):
            importance[j] += _block_score(p_cmp.tolist(), j, config)
    first_local = own - config.local_blocks + 1
    # The forced blocks first, then the most important; equals go to the lower block.
    ranked = sorted(
        range(own + 1),
        key=lambda j: (not (j < config.initial_blocks or j >= first_local), -importance[j], j),
    )
    return sorted(ranked[: config.select_count])


def _block_score(p_cmp: list[float], j: int, config: AttentionConfig) -> float:
    """Eq. 9. Its j and its index into p_cmp count from 1, ours from 0; p_cmp is 0 outside."""
    in_select = config.select_block // config.compress_stride
    in_compress = config.compress_block // config.compress_stride
    score = 0.0
    for m in range(in_select):
        for n in range(in_compress):
            index = in_select * (j + 1) - m - n - 1
            score += p_cmp[index] if 0 <= index < len(p_cmp) else 0.0
    return score


def _group(q: Tensor, kv_head: int, n_kv_heads: int) -> Tensor:
    """The heads of q [H, D] that share a KV head: [G, D]."""
    return q.chunk(n_kv_heads)[kv_head]


def _sequences(n_tokens: int, cu_seqlens: Tensor | None, config: AttentionConfig) -> list[_Sequence]:
    """The sequences of a row; tokens behind the last border are one more."""
    borders = [0, n_tokens] if cu_seqlens is None else [*cu_seqlens.tolist(), n_tokens]
    sequences, slot, block = [], 0, 0
    for start, end in itertools.pairwise(borders):
        n_compressed = max(0, (end - start - config.compress_block) // config.compress_stride + 1)
        sequences.append(_Sequence(start, end, range(slot, slot + n_compressed), block))
        slot += n_compressed
        block += -(-(end - start) // config.select_block)
    return sequences


def _of(token: int, sequences: list[_Sequence]) -> _Sequence:
    return next(s for s in sequences if s.start <= token < s.end)

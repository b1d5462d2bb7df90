"""Attention of one or a few new tokens to a cache, all three branches, in four launches.

A single query fills only one row of a tile, so its keys are split over programs: those of `_scores` each take a range of
the compressed keys, those of `_importance` a range of the selection blocks, whose best they return, those of `_attend` a
few selected blocks or a range of the window, and `_combine` adds the parts in a fixed order. No launch depends on the
lengths of the rows, so a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.inputs import BranchKV
from nsa.attention.kernels.tiles import LOG2_E, ceil_div, padded, power_of_two
from nsa.config import AttentionConfig

KEYS_EACH, KEYS = 256, 64  # compressed keys of a program of `_scores`, and of one of its tiles
BLOCKS_EACH = 128  # selection blocks of a program of `_importance`
CHOSEN_EACH = 2  # chosen blocks of a program of `_attend`
SLOTS_EACH = 128  # slots of the window of another


class Shape(NamedTuple):
    """The constants that kernels share; those that end in P are powers of two."""

    H: int  # query heads
    GROUP: int  # of them, that share a KV head
    GROUP_P: int
    D: int  # head dim of q and k
    DP: int
    DV: int  # head dim of v
    DVP: int


@triton.jit
def _keys_ended(token, STRIDE: tl.constexpr, LENGTH: tl.constexpr):
    return tl.maximum(token - LENGTH + 1 + STRIDE, 0) // STRIDE


@triton.jit
def _take(q, k, v, m, norm, acc, seen, scale_log2):
    """Add keys to the running softmax: q [G, D], k [D, keys], v [keys, DV]; also the masked scores."""
    s = tl.dot(q, k, input_precision="ieee") * scale_log2
    s = tl.where(seen[None, :], s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.exp2(s - m_new[:, None])
    shrink = tl.exp2(m - m_new)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return m_new, norm * shrink + tl.sum(p, 1), acc, s


@triton.jit
def _store_part(M, NORM, ACC, part, m, norm, acc, SHAPE: tl.constexpr):
    og, odv = tl.arange(0, SHAPE.GROUP_P), tl.arange(0, SHAPE.DVP)
    row = part.to(tl.int64) * SHAPE.GROUP_P + og
    tl.store(M + row, m)
    tl.store(NORM + row, norm)
    tl.store(ACC + row[:, None] * SHAPE.DV + odv[None, :], acc, mask=(odv < SHAPE.DV)[None, :])


@triton.jit
def _query(Q, row, SHAPE: tl.constexpr):
    """[GROUP_P, DP]: the heads of a group; `row` counts batch, query and KV head."""
    og, od = tl.arange(0, SHAPE.GROUP_P), tl.arange(0, SHAPE.DP)
    at = row.to(tl.int64) * SHAPE.GROUP * SHAPE.D + og[:, None] * SHAPE.D + od[None, :]
    return tl.load(Q + at, mask=(og < SHAPE.GROUP)[:, None] & (od < SHAPE.D)[None, :], other=0.0)


@triton.jit(do_not_specialize=["T", "capacity"])
def _scores(
    Q, K, V, LENGTHS, SCORES, M, NORM, ACC, T, capacity, scale_log2,
    STRIDE: tl.constexpr, LENGTH: tl.constexpr, EACH: tl.constexpr, KEYS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """A range of the compressed keys: their scores, in base 2, and their part of the branch's output."""
    GROUP_P: tl.constexpr = SHAPE.GROUP_P
    DVP: tl.constexpr = SHAPE.DVP
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    row, kv = tl.program_id(0), tl.program_id(0) % KV_HEADS
    b = row // KV_HEADS // T
    token = tl.load(LENGTHS + b).to(tl.int32) + row // KV_HEADS % T
    q = _query(Q, row, SHAPE)
    og, od, odv = tl.arange(0, GROUP_P), tl.arange(0, SHAPE.DP), tl.arange(0, DVP)
    m = tl.full([GROUP_P], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([GROUP_P], tl.float32)
    acc = tl.zeros([GROUP_P, DVP], tl.float32)
    n_keys = tl.minimum(_keys_ended(token, STRIDE, LENGTH), capacity)
    for first in range(tl.program_id(1) * EACH, tl.minimum((tl.program_id(1) + 1) * EACH, n_keys), KEYS):
        key = first + tl.arange(0, KEYS)
        seen = key < n_keys
        at = (b.to(tl.int64) * capacity + key) * KV_HEADS + kv
        k = tl.load(K + at[None, :] * D + od[:, None], mask=seen[None, :] & (od < D)[:, None], other=0.0)
        v = tl.load(V + at[:, None] * DV + odv[None, :], mask=seen[:, None] & (odv < DV)[None, :], other=0.0)
        m, norm, acc, s = _take(q, k, v, m, norm, acc, seen, scale_log2)
        scores_at = SCORES + (row.to(tl.int64) * SHAPE.GROUP + og[:, None]) * capacity + key[None, :]
        tl.store(scores_at, s, mask=(og < SHAPE.GROUP)[:, None] & seen[None, :])
    part = row * tl.num_programs(1) + tl.program_id(1)
    _store_part(M, NORM, ACC, part, m, norm, acc, SHAPE)


@triton.jit(do_not_specialize=["T", "capacity"])
def _importance(
    SCORES, M, NORM, LENGTHS, BEST, T, capacity,
    STRIDE: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr, INITIAL: tl.constexpr,
    LOCAL: tl.constexpr, PARTS: tl.constexpr, PARTS_P: tl.constexpr, EACH: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """The best of a range of selection blocks, as int64: importance, then inverted number, so lower ones win ties."""
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    row = tl.program_id(0)
    token = tl.load(LENGTHS + row // KV_HEADS // T).to(tl.int32) + row // KV_HEADS % T
    og, part = tl.arange(0, SHAPE.GROUP_P), tl.arange(0, PARTS_P)
    part_at = (row.to(tl.int64) * PARTS + part[None, :]) * SHAPE.GROUP_P + og[:, None]
    m = tl.load(M + part_at, mask=(part < PARTS)[None, :], other=-1e30)
    norm = tl.load(NORM + part_at, mask=(part < PARTS)[None, :], other=0.0)
    top = tl.max(m, 1)
    lse = top + tl.log2(tl.maximum(tl.sum(norm * tl.exp2(m - top[:, None]), 1), 1e-30))

    n_keys = tl.minimum(_keys_ended(token, STRIDE, LENGTH), capacity)
    block = tl.program_id(1) * EACH + tl.arange(0, EACH)
    importance = tl.zeros([EACH], tl.float32)
    REACH: tl.constexpr = LENGTH // STRIDE - 1
    PER_BLOCK: tl.constexpr = BLOCK // STRIDE
    for tap in tl.static_range(0, REACH + PER_BLOCK):
        offset = tap - REACH
        key = block * PER_BLOCK + offset
        seen = (og < SHAPE.GROUP)[:, None] & ((key >= 0) & (key < n_keys))[None, :]
        at = (row.to(tl.int64) * SHAPE.GROUP + og[:, None]) * capacity + key[None, :]
        p = tl.exp2(tl.load(SCORES + at, mask=seen, other=float("-inf")) - lse[:, None])
        shared = min(offset + REACH + 1, PER_BLOCK) - max(
            offset, 0
        )  # strides that the key shares with the block
        importance += shared * tl.sum(tl.where(seen, p, 0.0), 0)
    own = token // BLOCK
    forced = (block < INITIAL) | (block > own - LOCAL)
    importance = tl.where(forced, float("inf"), importance)
    packed = (importance.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (0x7FFFFFFF - block).to(tl.int64)
    packed = tl.sort(tl.where(block <= own, packed, -1))
    place = EACH - 1 - tl.arange(0, EACH)  # from the best
    best_at = BEST + (row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * COUNT + place
    tl.store(best_at, packed, mask=place < COUNT)


@triton.jit(do_not_specialize=["T", "capacity"])
def _attend(
    Q, K, V, K_RING, V_RING, BEST, LENGTHS, M, NORM, ACC, T, capacity, ring, window, scale_log2,
    BLOCK: tl.constexpr, BLOCK_P: tl.constexpr, COUNT: tl.constexpr, OFFERS: tl.constexpr, OFFERS_P: tl.constexpr,
    CHOSEN_PARTS: tl.constexpr, CHOSEN: tl.constexpr, SLOTS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Attend to a few of the selected blocks, or to a range of the window's slots: token t is in slot t % ring."""
    GROUP_P: tl.constexpr = SHAPE.GROUP_P
    DVP: tl.constexpr = SHAPE.DVP
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    row, kv = tl.program_id(0), tl.program_id(0) % KV_HEADS
    b = row // KV_HEADS // T
    newest = tl.load(LENGTHS + b).to(tl.int32) + T - 1
    token = newest - T + 1 + row // KV_HEADS % T
    q = _query(Q, row, SHAPE)
    od, odv = tl.arange(0, SHAPE.DP), tl.arange(0, DVP)
    m = tl.full([GROUP_P], -1e30, tl.float32)
    norm = tl.zeros([GROUP_P], tl.float32)
    acc = tl.zeros([GROUP_P, DVP], tl.float32)
    if tl.program_id(1) < CHOSEN_PARTS:
        offer = tl.arange(0, OFFERS_P)
        best = tl.load(BEST + row.to(tl.int64) * OFFERS + offer, mask=offer < OFFERS, other=-1)
        best = tl.sort(best)
        for i in range(0, CHOSEN):
            rank = tl.program_id(1) * CHOSEN + i
            chosen = tl.max(tl.where((offer == OFFERS_P - 1 - rank) & (rank < COUNT), best, -1), 0)
            if chosen >= 0:
                ob = tl.arange(0, BLOCK_P)
                key = (0x7FFFFFFF - (chosen & 0x7FFFFFFF)).to(tl.int32) * BLOCK + ob
                seen = (key <= token) & (ob < BLOCK)
                at = (b.to(tl.int64) * capacity + key) * KV_HEADS + kv
                k_mask = seen[None, :] & (od < D)[:, None]
                v_mask = seen[:, None] & (odv < DV)[None, :]
                k = tl.load(K + at[None, :] * D + od[:, None], mask=k_mask, other=0.0)
                v = tl.load(V + at[:, None] * DV + odv[None, :], mask=v_mask, other=0.0)
                m, norm, acc, _ = _take(q, k, v, m, norm, acc, seen, scale_log2)
    else:
        slot = (tl.program_id(1) - CHOSEN_PARTS) * SLOTS + tl.arange(0, SLOTS)
        held = newest - (newest - slot + ring) % ring  # the newest token that has this slot
        seen = (slot < ring) & (held >= 0) & (held <= token) & (held > token - window)
        at = (b.to(tl.int64) * ring + slot) * KV_HEADS + kv
        k = tl.load(K_RING + at[None, :] * D + od[:, None], mask=seen[None, :] & (od < D)[:, None], other=0.0)
        v = tl.load(
            V_RING + at[:, None] * DV + odv[None, :], mask=seen[:, None] & (odv < DV)[None, :], other=0.0
        )
        m, norm, acc, _ = _take(q, k, v, m, norm, acc, seen, scale_log2)
    part = row * tl.num_programs(1) + tl.program_id(1)
    _store_part(M, NORM, ACC, part, m, norm, acc, SHAPE)


@triton.jit
def _branch(M, NORM, ACC, row, g, begin, end, ALL: tl.constexpr, PARTS: tl.constexpr, SHAPE: tl.constexpr):
    """The output of one head from its parts [begin, end), out of ALL parts of a row."""
    DVP: tl.constexpr = SHAPE.DVP
    odv = tl.arange(0, DVP)
    m = tl.full([], -1e30, tl.float32)
    norm = tl.zeros([], tl.float32)
    acc = tl.zeros([DVP], tl.float32)
    for first in range(begin, end, PARTS):
        part = first + tl.arange(0, PARTS)
        at = (row.to(tl.int64) * ALL + part) * SHAPE.GROUP_P + g
        m_part = tl.load(M + at, mask=part < end, other=-1e30)
        m_new = tl.maximum(m, tl.max(m_part, 0))
        weight = tl.exp2(m_part - m_new)
        norm = norm * tl.exp2(m - m_new) + tl.sum(weight * tl.load(NORM + at, mask=part < end, other=0.0), 0)
        mask = (part < end)[:, None] & (odv < SHAPE.DV)[None, :]
        each = tl.load(ACC + at[:, None] * SHAPE.DV + odv[None, :], mask=mask, other=0.0)
        acc = acc * tl.exp2(m - m_new) + tl.sum(weight[:, None] * each, 0)
        m = m_new
    return acc / tl.where(norm > 0, norm, 1.0)  # a query that sees no key gets 0


@triton.jit
def _combine(
    M_A, NORM_A, ACC_A, M, NORM, ACC, GATES, OUT,
    COMPRESSED: tl.constexpr, CHOSEN: tl.constexpr, ALL: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """The gated sum of the branches for one head of one query."""
    row, g = tl.program_id(0) // SHAPE.GROUP, tl.program_id(0) % SHAPE.GROUP
    odv = tl.arange(0, SHAPE.DVP)
    gate = GATES + tl.program_id(0) * 3
    out = tl.load(gate).to(tl.float32) * _branch(
        M_A, NORM_A, ACC_A, row, g, 0, COMPRESSED, COMPRESSED, 32, SHAPE
    )
    out += tl.load(gate + 1).to(tl.float32) * _branch(M, NORM, ACC, row, g, 0, CHOSEN, ALL, 8, SHAPE)
    out += tl.load(gate + 2).to(tl.float32) * _branch(M, NORM, ACC, row, g, CHOSEN, ALL, ALL, 8, SHAPE)
    tl.store(
        OUT + tl.program_id(0).to(tl.int64) * SHAPE.DV + odv,
        out.to(OUT.dtype.element_ty),
        mask=odv < SHAPE.DV,
    )


def decode(
    q: Tensor, k: BranchKV, v: BranchKV, gates: Tensor, lengths: Tensor, config: AttentionConfig
) -> Tensor:
    """[B, T, H, Dv]; arguments as in `nsa.attention.decode_attention.decode_attention`, all contiguous."""
    batch, n_queries, heads, dim = q.shape
    kv_heads, v_dim = k.selected.shape[2], v.selected.shape[3]
    group = heads // kv_heads
    rows = batch * n_queries * kv_heads
    shape = Shape(heads, group, padded(group), dim, padded(dim), v_dim, padded(v_dim))
    scale_log2 = dim**-0.5 * LOG2_E
    capacity, n_compressed, ring = k.selected.shape[1], k.compressed.shape[1], k.sliding.shape[1]

    splits = max(1, ceil_div(n_compressed, KEYS_EACH))
    scores = q.new_empty(rows, group, max(1, n_compressed), dtype=torch.float32)
    parts_a = _parts(q, rows, splits, shape)
    _scores[(rows, splits)](
        q, k.compressed, v.compressed, lengths, scores, *parts_a, n_queries, n_compressed, scale_log2, SHAPE=shape,
        STRIDE=config.compress_stride, LENGTH=config.compress_block, EACH=KEYS_EACH, KEYS=KEYS,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    ranges = ceil_div(ceil_div(capacity, config.select_block), BLOCKS_EACH)
    best = torch.empty(rows, ranges, config.select_count, dtype=torch.int64, device=q.device)
    _importance[(rows, ranges)](
        scores, *parts_a[:2], lengths, best, n_queries, n_compressed, SHAPE=shape,
        STRIDE=config.compress_stride, LENGTH=config.compress_block, BLOCK=config.select_block,
        COUNT=config.select_count, INITIAL=config.initial_blocks, LOCAL=config.local_blocks, PARTS=splits,
        PARTS_P=power_of_two(splits), EACH=BLOCKS_EACH, num_warps=4,
    )  # fmt: skip
    chosen_parts = ceil_div(config.select_count, CHOSEN_EACH)
    all_parts = chosen_parts + ceil_div(ring, SLOTS_EACH)
    parts = _parts(q, rows, all_parts, shape)
    offers = ranges * config.select_count
    _attend[(rows, all_parts)](
        q, k.selected, v.selected, k.sliding, v.sliding, best, lengths, *parts, n_queries, capacity, ring,
        config.window, scale_log2, SHAPE=shape, BLOCK=config.select_block, BLOCK_P=padded(config.select_block),
        COUNT=config.select_count, OFFERS=offers, OFFERS_P=power_of_two(offers), CHOSEN_PARTS=chosen_parts,
        CHOSEN=CHOSEN_EACH, SLOTS=SLOTS_EACH, num_warps=4, num_stages=2,
    )  # fmt: skip
    out = q.new_empty(batch, n_queries, heads, v_dim)
    _combine[(rows * group,)](
        *parts_a, *parts, gates, out, SHAPE=shape, COMPRESSED=splits, CHOSEN=chosen_parts, ALL=all_parts, num_warps=2,
    )  # fmt: skip
    return out


def _parts(q: Tensor, rows: int, n_parts: int, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum, sum and weighted values of each part's softmax, for all heads of a group."""
    m = q.new_empty(rows, n_parts, shape.GROUP_P, dtype=torch.float32)
    return m, torch.empty_like(m), m.new_empty(*m.shape, shape.DV)

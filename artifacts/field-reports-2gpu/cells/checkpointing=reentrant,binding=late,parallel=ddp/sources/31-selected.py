







from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.band import LOG2_E, wide
from nsa.attention.kernels.tiles import (
    ceil_div,
    padded,
    power_of_two,
    selected_dkv_launch,
    selected_launch,
    tokens_per_chunk,
    tokens_per_tile,
)


class Unions(NamedTuple):
    """Per tile of neighbouring tokens, the blocks that any of them selected, ascending."""

    block: Tensor  # int32 [B * Hkv, tiles, tokens * n]
    tokens: Tensor  # int32, bit i: token i of the tile selected the block
    count: Tensor  # int32 [B * Hkv, tiles]


@triton.jit
def _merge(block_a, tokens_a, block_b, tokens_b):
    """Scan step over sorted blocks: collect the tokens of equal ones."""
    return block_b, tl.where(block_a == block_b, tokens_a | tokens_b, tokens_b)


@triton.jit
def _unions(
    BLOCKS, UNION, TOKENS, UNION_COUNT, T,
    COUNT: tl.constexpr, COUNT_P: tl.constexpr, TOKENS_P: tl.constexpr,
):  # fmt: skip
    ENTRIES: tl.constexpr = TOKENS_P * COUNT_P
    entry = tl.arange(0, ENTRIES)
    token, slot = entry // COUNT_P, entry % COUNT_P
    query = tl.program_id(0) * TOKENS_P + token
    blocks_at = BLOCKS + (tl.program_id(1).to(tl.int64) * T + query) * COUNT + slot
    block = tl.load(blocks_at, mask=(slot < COUNT) & (query < T), other=-1)
    NONE: tl.constexpr = 0x7FFFFFFF
    key = tl.sort(tl.where(block >= 0, block * TOKENS_P + token, NONE))
    block = key // TOKENS_P
    bit = tl.full([ENTRIES], 1, tl.int32) << (key % TOKENS_P)
    block, bits = tl.associative_scan((block, bit), 0, _merge)
    following = tl.gather(block, tl.minimum(entry + 1, ENTRIES - 1), 0)
    last = (key != NONE) & ((following != block) | (entry == ENTRIES - 1))
    place = tl.cumsum(last.to(tl.int32), 0) - 1
    tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(UNION + tile * (TOKENS_P * COUNT) + place, block, mask=last)
    tl.store(TOKENS + tile * (TOKENS_P * COUNT) + place, bits, mask=last)
    tl.store(UNION_COUNT + tile, tl.sum(last.to(tl.int32), 0))


@triton.jit(do_not_specialize=["past", "S"])
def _forward(
    Q, K, V, OUT, LSE, UNION, TOKENS, UNION_COUNT, T, S, past, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    DV: tl.constexpr, DVP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_P: tl.constexpr,
    COUNT: tl.constexpr, TOKENS_P: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = TOKENS_P * GROUP_P
    kv_heads: tl.constexpr = H // GROUP
    b, kv = tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
    first = tl.program_id(0) * TOKENS_P
    row = tl.arange(0, ROWS)
    token, head = row // GROUP_P, row % GROUP_P
    live = (first + token < T) & (head < GROUP)
    od, odv, ob = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, BLOCK_P)
    begin_row = (b.to(tl.int64) * T + first) * H + kv * GROUP
    row_offset = token * H + head
    q_at = Q + begin_row * D + row_offset[:, None] * D + od[None, :]
    q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
    K += (b.to(tl.int64) * S * kv_heads + kv) * D
    V += (b.to(tl.int64) * S * kv_heads + kv) * DV
    query = past + first + token

    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    count = tl.load(UNION_COUNT + tile)
    for i in range(0, count):
        block = tl.load(UNION + tile * (TOKENS_P * COUNT) + i)
        tokens = tl.load(TOKENS + tile * (TOKENS_P * COUNT) + i)
        key = block * BLOCK + ob
        inside = (key < S) & (ob < BLOCK)
        start = (block * BLOCK).to(tl.int64) * kv_heads
        k_at = K + start * D + ob[None, :] * (kv_heads * D) + od[:, None]
        v_at = V + start * DV + ob[:, None] * (kv_heads * DV) + odv[None, :]
        k = tl.load(k_at, mask=inside[None, :] & (od < D)[:, None], other=0.0)
        v = tl.load(v_at, mask=inside[:, None] & (odv < DV)[None, :], other=0.0)
        s = tl.dot(q, k, input_precision="ieee")
        # A token that did not select the block sees no key up to -1: one comparison does for both masks.
        until = tl.where(((tokens >> token) & 1) != 0, query, -1)
        seen = key[None, :] <= until[:, None]
        if BLOCK != BLOCK_P:
            seen = seen & (ob < BLOCK)[None, :]
        s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        p = tl.exp2(s * scale_log2 - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    norm = tl.where(norm > 0, norm, 1.0)
    out = acc / norm[:, None]
    out_at = OUT + begin_row * DV + row_offset[:, None] * DV + odv[None, :]
    tl.store(out_at, out.to(OUT.dtype.element_ty), mask=live[:, None] & (odv < DV)[None, :])
    lse_at = LSE + (b * H + kv * GROUP + head).to(tl.int64) * T + first + token
    tl.store(lse_at, m + tl.log2(norm), mask=live)


@triton.jit(do_not_specialize=["past", "S"])
def _dq(
    Q, K, V, DOUT, LSE, DOT, DQ, UNION, TOKENS, UNION_COUNT, T, S, past, scale, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    DV: tl.constexpr, DVP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_P: tl.constexpr,
    COUNT: tl.constexpr, TOKENS_P: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = TOKENS_P * GROUP_P
    kv_heads: tl.constexpr = H // GROUP
    b, kv = tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
    first = tl.program_id(0) * TOKENS_P
    row = tl.arange(0, ROWS)
    token, head = row // GROUP_P, row % GROUP_P
    live = (first + token < T) & (head < GROUP)
    od, odv, ob = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, BLOCK_P)
    begin_row = (b.to(tl.int64) * T + first) * H + kv * GROUP
    row_offset = token * H + head
    q_offset = begin_row * D + row_offset[:, None] * D + od[None, :]
    q_mask = live[:, None] & (od < D)[None, :]
    q = tl.load(Q + q_offset, mask=q_mask, other=0.0)
    do_at = DOUT + begin_row * DV + row_offset[:, None] * DV + odv[None, :]
    do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
    row_at = (b * H + kv * GROUP + head).to(tl.int64) * T + first + token
    lse = tl.load(LSE + row_at, mask=live, other=0.0)
    dot = tl.load(DOT + row_at, mask=live, other=0.0)
    K += (b.to(tl.int64) * S * kv_heads + kv) * D
    V += (b.to(tl.int64) * S * kv_heads + kv) * DV
    query = past + first + token

    acc = tl.zeros([ROWS, DP], tl.float32)
    tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    count = tl.load(UNION_COUNT + tile)
    for i in range(0, count):
        block = tl.load(UNION + tile * (TOKENS_P * COUNT) + i)
        tokens = tl.load(TOKENS + tile * (TOKENS_P * COUNT) + i)
        key = block * BLOCK + ob
        inside = (key < S) & (ob < BLOCK)
        start = (block * BLOCK).to(tl.int64) * kv_heads
        k_at = K + start * D + ob[:, None] * (kv_heads * D) + od[None, :]
        v_at = V + start * DV + ob[None, :] * (kv_heads * DV) + odv[:, None]
        k = tl.load(k_at, mask=inside[:, None] & (od < D)[None, :], other=0.0)
        v = tl.load(v_at, mask=inside[None, :] & (odv < DV)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, v, input_precision="ieee")
        until = tl.where(((tokens >> token) & 1) != 0, query, -1)
        seen = key[None, :] <= until[:, None]
        if BLOCK != BLOCK_P:
            seen = seen & (ob < BLOCK)[None, :]
        p = tl.where(seen, tl.exp2(s * scale_log2 - lse[:, None]), 0.0)
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc, input_precision="ieee")
    acc = acc * scale
    if ADD:
        acc += tl.load(DQ + q_offset, mask=q_mask, other=0.0).to(tl.float32)
    tl.store(DQ + q_offset, acc.to(DQ.dtype.element_ty), mask=q_mask)


@triton.jit
def _first_slab(LIST, number, CHUNK: tl.constexpr):
    """Where the chunks of a list go. A list of n entries has at most ceil(n / CHUNK) of them: room enough."""
    return tl.load(LIST + number) // CHUNK + number


@triton.jit
def _list_of_slab(LIST, slab, n_lists, CHUNK: tl.constexpr):
    """The last list whose chunks begin at or before `slab`, by bisection."""
    low, high = slab * 0, slab * 0 + n_lists - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = _first_slab(LIST, middle, CHUNK) <= slab
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    return low


@triton.jit(do_not_specialize=["past", "S", "n_blocks", "n_lists"])
def _dkv(
    Q, K, V, DOUT, LSE, DOT, DK, DV_OUT, ENTRY, LIST, T, S, past, n_blocks, n_lists, scale, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    DV: tl.constexpr, DVP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_P: tl.constexpr,
    COUNT: tl.constexpr, CHUNK: tl.constexpr, TOKENS_P: tl.constexpr,
):  # fmt: skip
    """One program: one chunk of the entries, which are (token, slot), that chose one block."""
    slab = tl.program_id(0)
    number = _list_of_slab(LIST, slab, n_lists, CHUNK)  # which list: (batch, head, block)
    begin = tl.load(LIST + number) + (slab - _first_slab(LIST, number, CHUNK)) * CHUNK
    list_end = tl.load(LIST + number + 1)
    if begin >= list_end:
        return
    end = tl.minimum(begin + CHUNK, list_end)
    kv_heads: tl.constexpr = H // GROUP
    ROWS: tl.constexpr = TOKENS_P * GROUP_P
    block, bh = number % n_blocks, number // n_blocks
    b, kv = bh // kv_heads, bh % kv_heads
    row = tl.arange(0, ROWS)
    head = row % GROUP_P
    od, odv, ob = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, BLOCK_P)
    key = block * BLOCK + ob
    inside = (key < S) & (ob < BLOCK)
    key_row = (b.to(tl.int64) * S + block * BLOCK) * kv_heads + kv
    k_at = K + key_row * D + ob[:, None] * (kv_heads * D) + od[None, :]
    v_at = V + key_row * DV + ob[:, None] * (kv_heads * DV) + odv[None, :]
    k = tl.load(k_at, mask=inside[:, None] & (od < D)[None, :], other=0.0)
    v = tl.load(v_at, mask=inside[:, None] & (odv < DV)[None, :], other=0.0)
    dk = tl.zeros([BLOCK_P, DP], tl.float32)
    dv = tl.zeros([BLOCK_P, DVP], tl.float32)
    first_row = b.to(tl.int64) * T * H + kv * GROUP
    head_row = (b * H + kv * GROUP).to(tl.int64) * T
    list_start = bh.to(tl.int64) * T * COUNT
    for i in range(begin, end, TOKENS_P):
        entry = i + row // GROUP_P
        live = (entry < end) & (head < GROUP)
        token = ((tl.load(ENTRY + entry, mask=live, other=0) - list_start) // COUNT).to(tl.int32)
        token = tl.where(live, token, 0)
        q_row = first_row + token.to(tl.int64) * H + head
        q = tl.load(Q + q_row[:, None] * D + od[None, :], mask=live[:, None] & (od < D)[None, :], other=0.0)
        do_at = DOUT + q_row[:, None] * DV + odv[None, :]
        do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
        row_at = head_row + head.to(tl.int64) * T + token
        lse = tl.load(LSE + row_at, mask=live, other=0.0)
        dot = tl.load(DOT + row_at, mask=live, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision="ieee")
        seen = key[:, None] <= tl.where(live, past + token, -1)[None, :]
        p = tl.where(seen, tl.exp2(s * scale_log2 - lse[None, :]), 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        ds = p * (dp - dot[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    slab_row = slab.to(tl.int64) * BLOCK
    within = (ob < BLOCK)[:, None]
    dk_at = DK + slab_row * D + ob[:, None] * D + od[None, :]
    dv_at = DV_OUT + slab_row * DV + ob[:, None] * DV + odv[None, :]
    tl.store(dk_at, dk * scale, mask=within & (od < D)[None, :])
    tl.store(dv_at, dv, mask=within & (odv < DV)[None, :])


@triton.jit
def _sum_slabs(
    PART, OUT, begin, end, b, kv, block, S,
    KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    od = tl.arange(0, DP)
    mask = (key < BLOCK)[:, None] & (od < D)[None, :]
    acc = tl.zeros([KEYS, DP], tl.float32)
    for chunk in range(begin, end):
        slab = wide(chunk) * BLOCK * D
        acc += tl.load(PART + slab + key[:, None] * D + od[None, :], mask=mask, other=0.0)
    out_at = OUT + ((b.to(tl.int64) * S + block * BLOCK) * KV_HEADS + kv) * D
    out_at += key[:, None] * (KV_HEADS * D) + od[None, :]
    mask = mask & (block * BLOCK + key < S)[:, None]
    tl.store(out_at, acc.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["S", "n_blocks"])
def _sum_chunks(
    DK_PART, DV_PART, DK, DV_OUT, LIST, S, n_blocks,
    KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Sum the chunks of one block in their order, and put the sums where its keys are."""
    number = tl.program_id(0)
    block, bh = number % n_blocks, number // n_blocks
    b, kv = bh // KV_HEADS, bh % KV_HEADS
    begin = _first_slab(LIST, number, CHUNK)
    end = begin + tl.cdiv(tl.load(LIST + number + 1) - tl.load(LIST + number), CHUNK)
    _sum_slabs(DK_PART, DK, begin, end, b, kv, block, S, KV_HEADS, D, DP, BLOCK, KEYS)
    _sum_slabs(DV_PART, DV_OUT, begin, end, b, kv, block, S, KV_HEADS, DV, DVP, BLOCK, KEYS)


@triton.jit(do_not_specialize=["n_blocks", "n_lists"])
def _list_numbers(BLOCKS, NUMBER, per_head, n_blocks, n_lists, ENTRIES: tl.constexpr):
    """The list of each entry: n_lists for -1."""
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    at = tl.program_id(1).to(tl.int64) * per_head + entry
    block = tl.load(BLOCKS + at, mask=entry < per_head, other=-1)
    number = tl.where(block >= 0, tl.program_id(1) * n_blocks + block, n_lists)
    tl.store(NUMBER + at, number, mask=entry < per_head)


def unions(blocks: Tensor, tokens: int) -> Unions:
    """The union of the `blocks` [B, Hkv, T, n], int32, of every `tokens` neighbouring tokens."""
    batch, kv_heads, n_queries, count = blocks.shape
    lists, tiles = batch * kv_heads, ceil_div(n_queries, tokens)
    block = blocks.new_empty(lists, tiles, tokens * count)
    union = Unions(block, torch.empty_like(block), blocks.new_empty(lists, tiles))
    count_p = power_of_two(count)
    _unions[(tiles, lists)](
        blocks, *union, n_queries, COUNT=count, COUNT_P=count_p, TOKENS_P=tokens,
        num_warps=max(1, min(4, tokens * count_p // 128)),
    )  # fmt: skip
    return union


def selected_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, block: int, past: int, tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    """Attend from q [B, T, H, Dqk] to the `blocks` of `block` keys each in k and v [B, S, Hkv, D].

    All are contiguous; `blocks` [B, Hkv, T, n] is int32. Returns the output [B, T, H, Dv] and lse [B, H, T],
    fp32, in base 2.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads = k.shape[2]
    tokens = tokens or tokens_per_tile(heads // kv_heads, q.dtype)
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    lse = q.new_empty(batch, heads, n_queries, dtype=torch.float32)
    constants = _constants(q, k, v, block, blocks.shape[3])
    warps, stages = selected_launch(max(constants["DP"], constants["DVP"]))
    _forward[(ceil_div(n_queries, tokens), batch * kv_heads)](
        q, k, v, out, lse, *unions(blocks, tokens), n_queries, k.shape[1], past, dim**-0.5 * LOG2_E,
        **constants, TOKENS_P=tokens, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, lse


def selected_dq(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, dot: Tensor, dq: Tensor, blocks: Tensor,
    block: int, past: int, *, add: bool, tokens: int | None = None,
) -> None:  # fmt: skip
    """Write the gradient of q into `dq`, or `add` it; `lse` and `dot` as in `band.band_dq`."""
    batch, n_queries, heads, dim = q.shape
    kv_heads = k.shape[2]
    tokens = tokens or tokens_per_tile(heads // kv_heads, q.dtype)
    constants = _constants(q, k, v, block, blocks.shape[3])
    warps, stages = selected_launch(max(constants["DP"], constants["DVP"]))
    _dq[(ceil_div(n_queries, tokens), batch * kv_heads)](
        q, k, v, dout, lse, dot, dq, *unions(blocks, tokens), n_queries, k.shape[1], past,
        dim**-0.5, dim**-0.5 * LOG2_E, **constants, TOKENS_P=tokens, ADD=add,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def selected_dkv(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, dot: Tensor, blocks: Tensor, block: int,
    past: int, chunk: int | None = None, tokens: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of k and v; `lse` and `dot` as in `band.band_dq`."""
    batch, n_queries, _, dim = q.shape
    n_keys, kv_heads, v_dim = k.shape[1:3] + v.shape[3:]
    n_blocks = ceil_div(n_keys, block)
    n_lists = batch * kv_heads * n_blocks
    chunk = chunk or tokens_per_chunk(n_queries)
    constants = _constants(q, k, v, block, blocks.shape[3])
    rows, warps, stages = selected_dkv_launch(max(constants["DP"], constants["DVP"]), q.dtype)
    tokens = tokens or max(1, rows // constants["GROUP_P"])
    entries, starts = _lists(blocks, n_blocks)
    # A bound on the slabs that `_first_slab` gives, which needs no look at the data.
    n_slabs = blocks.numel() // chunk + n_lists
    dk_parts = q.new_empty(n_slabs, block, dim, dtype=torch.float32)
    dv_parts = q.new_empty(n_slabs, block, v_dim, dtype=torch.float32)
    _dkv[(n_slabs,)](
        q, k, v, dout, lse, dot, dk_parts, dv_parts, entries, starts, n_queries, n_keys, past, n_blocks,
        n_lists, dim**-0.5, dim**-0.5 * LOG2_E, **constants, CHUNK=chunk, TOKENS_P=tokens,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    keys = min(16, power_of_two(block))
    _sum_chunks[(n_lists, ceil_div(block, keys))](
        dk_parts, dv_parts, dk, dv, starts, n_keys, n_blocks, KV_HEADS=kv_heads, D=dim,
        DP=power_of_two(dim), DV=v_dim, DVP=power_of_two(v_dim), BLOCK=block, CHUNK=chunk, KEYS=keys,
        num_warps=4,
    )  # fmt: skip
    return dk, dv


def _lists(blocks: Tensor, n_blocks: int) -> tuple[Tensor, Tensor]:
    """The entries of `blocks`, as flat indices (int64), list after list, and where each list starts (int32).

    A list is one block of one head and row. Entries of -1 come last, in no list.
    """
    batch, kv_heads, n_queries, count = blocks.shape
    n_lists, per_head = batch * kv_heads * n_blocks, n_queries * count
    number = torch.empty_like(blocks).flatten()
    _list_numbers[(ceil_div(per_head, 1024), batch * kv_heads)](
        blocks, number, per_head, n_blocks, n_lists, ENTRIES=1024, num_warps=4
    )
    number, entries = number.sort(stable=True)
    lists = torch.arange(n_lists + 1, device=blocks.device, dtype=torch.int32)
    return entries, torch.searchsorted(number, lists, out_int32=True)


def _constants(q: Tensor, k: Tensor, v: Tensor, block: int, count: int) -> dict[str, int]:
    group = q.shape[2] // k.shape[2]
    return {
        "H": q.shape[2], "GROUP": group, "GROUP_P": power_of_two(group),
        "D": q.shape[3], "DP": padded(q.shape[3]), "DV": v.shape[3], "DVP": padded(v.shape[3]),
        "BLOCK": block, "BLOCK_P": padded(block), "COUNT": count,
    }  # fmt: skip

"""Selection, the lists that its backward reads, and decoding.

Under Triton's interpreter: `test_kernels_interpreter.py` starts this file.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from attention_cases import SMALL, Case, random_inputs
from interpreting import CPU, TINY, uninitialised_memory_is_nan  # noqa: F401

from nsa.attention import BranchKV
from nsa.attention.blocks import block_layout, n_compress_slots, packed_borders
from nsa.attention.decode_attention import decode_attention
from nsa.attention.kernels import decode
from nsa.attention.kernels.bands.band import Lengths, bands_forward
from nsa.attention.kernels.selected import choose, lists
from nsa.attention.kernels.selected.choose import Selection, select, select_few
from nsa.attention.reference import reference_selection
from nsa.attention.selected import select_blocks
from nsa.cache import DecodeCache, Rows, as_ring
from nsa.config import AttentionConfig

# Scores are exponentiated before they are masked, here as on a GPU.
pytestmark = [pytest.mark.filterwarnings("ignore:overflow encountered in exp2"), pytest.mark.one_in(3)]


def test_selection_equals_the_reference_and_ties_go_to_the_lower_block():
    case = Case(n_tokens=150, n_heads=3, n_kv_heads=1)
    inputs = random_inputs(case)
    q, k = inputs.q.detach().float(), inputs.k.compressed.detach().float()
    expected = reference_selection(inputs.q[:, -8:], inputs.k.compressed, SMALL, past_length=142)
    assert torch.equal(_select(q[:, -8:], k, 142).long(), expected)
    equal = torch.zeros_like(q)
    layout = block_layout(SMALL, 150, CPU)
    assert torch.equal(_select(equal, k, 0).long(), select_blocks(equal, k, layout))


@pytest.mark.parametrize("lengths", [(), (13, 3, 0, 20)])
def test_selection_some_queries_at_a_time_gives_the_same_blocks(monkeypatch, lengths):
    case = Case(config=TINY, n_tokens=40, n_heads=2, n_kv_heads=1, lengths=lengths)
    inputs = random_inputs(case, dtype=torch.float32)
    borders = packed_borders(TINY, 40, case.cu_seqlens()) if lengths else None
    at_once = _select_by(inputs.q.detach(), inputs.k.compressed.detach(), borders)
    monkeypatch.setattr(choose, "SCORES", 1)  # one tile of queries
    assert torch.equal(_select_by(inputs.q.detach(), inputs.k.compressed.detach(), borders), at_once)


def test_queries_of_nan_select_as_many_blocks_as_others_and_none_that_they_do_not_see():
    case = Case(config=TINY, n_tokens=40, n_heads=2, n_kv_heads=1)
    inputs = random_inputs(case, dtype=torch.float32)
    blocks = _select_by(inputs.q.detach() * float("nan"), inputs.k.compressed.detach(), None)[0, 0]
    own = torch.arange(40) // TINY.select_block
    assert ((blocks >= 0).sum(-1) == (own + 1).clamp(max=TINY.select_count)).all()
    assert (blocks <= own[:, None]).all()


def _select_by(q: torch.Tensor, k: torch.Tensor, borders: torch.Tensor | None) -> torch.Tensor:
    """By scores that no softmax divides."""
    choose = Selection(
        TINY.compress_stride, TINY.compress_block, TINY.select_block, TINY.select_count,
        TINY.initial_blocks, TINY.local_blocks,
    )  # fmt: skip
    return select(q, k, torch.zeros(1, q.shape[2], q.shape[1]), choose, 0, borders)


def test_selection_of_few_blocks_by_bits_equals_the_reference_and_ties_go_to_the_lower_block():
    inputs = random_inputs(Case(n_tokens=75, n_heads=3, n_kv_heads=1))  # 19 blocks of 4
    q, k = inputs.q.detach().float(), inputs.k.compressed.detach().float()
    for past, queries in ((0, q), (60, q[:, 60:]), (0, torch.zeros_like(q))):
        blocks = _select(queries, k, past)
        bits = _select(queries, k, past, by=select_few)
        assert torch.equal(bits, torch.where(blocks < 0, 0, 1 << blocks.clamp(min=0)).sum(-1).int())


def _select(
    q: torch.Tensor, k: torch.Tensor, past: int, config: AttentionConfig = SMALL, by=select
) -> torch.Tensor:
    lengths = Lengths(config.compress_stride, config.compress_block, config.select_block, 1, past)
    selection = Selection(
        config.compress_stride, config.compress_block, config.select_block, config.select_count,
        config.initial_blocks, config.local_blocks,
    )  # fmt: skip
    alone = (k, None, None)
    return by(q, k, bands_forward(q, alone, alone, lengths).lses[0], selection, past)


# Shares of 2, 16 and all tokens; in one chunk, and one share at a time.
@pytest.mark.parametrize(("share", "most_counts"), [(8, 2**24), (64, 2**24), (1024, 2**24), (64, 1)])
def test_lists_of_tokens_are_ascending_list_after_list(monkeypatch, share, most_counts):
    monkeypatch.setattr(lists, "SHARE", share)
    monkeypatch.setattr(lists, "MOST_COUNTS", most_counts)
    generator = torch.Generator().manual_seed(0)
    blocks = torch.full((2, 2, 37, 3), -1, dtype=torch.int32)
    for at in itertools.product(range(2), range(2), range(37)):
        chosen = torch.randperm(at[2] // 4 + 1, generator=generator)[:3].sort().values
        blocks[at][: len(chosen)] = chosen
    expected = [
        (blocks[b, h] == block).any(-1).nonzero().flatten().tolist()
        for b, h, block in itertools.product(range(2), range(2), range(10))
    ]
    listed, starts = lists.lists_of_tokens(blocks, 10)
    assert listed.dtype == starts.dtype == torch.int32 and len(starts) == 41
    assert [listed[a:b].tolist() for a, b in itertools.pairwise(starts.tolist())] == expected


@pytest.mark.parametrize(("heads", "dims", "n_new"), [((6, 2), (24, 12), 1), ((2, 2), (8, 8), 2)])
def test_decoding_equals_what_the_torch_backend_gives_each_row(monkeypatch, heads, dims, n_new):
    # Several programs for every part of the work, though there are few tokens.
    for name, value in {"KEYS_EACH": 16, "KEYS": 16, "BLOCKS_EACH": 8, "SLOTS_EACH": 16}.items():
        monkeypatch.setattr(decode, name, value)
    config = TINY.model_copy(update={"window": 18})
    rows = Rows(torch.tensor([70, 0, 3, 31]), capacity=80)
    kernels, torchs = (
        decode_cache(config.model_copy(update={"backend": backend}), rows, heads[1], dims, n_new)
        for backend in ("triton", "torch")
    )
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(4, n_new, heads[0], dims[0], generator=generator)
    gates = torch.rand(4, n_new, heads[0], 3, generator=generator)
    actual, expected = (decode_attention(q, gates, cache) for cache in (kernels, torchs))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(actual, decode_attention(q, gates, kernels))


def decode_cache(config, rows, kv_heads, dims, n_new) -> DecodeCache:
    """One that holds random numbers in the places of `rows` and the new tokens, and NaN in all others."""
    generator = torch.Generator().manual_seed(5)
    cache, whole = DecodeCache(config, rows, n_new), Rows(rows.lengths + n_new, rows.capacity)
    n_blocks = n_compress_slots(config, rows.capacity, packed=False)
    kept = []
    for dim in dims:
        draw = [
            torch.randn(4, n, kv_heads, dim, generator=generator)
            for n in (n_blocks, rows.capacity, rows.capacity)
        ]
        for b, length in enumerate(whole.lengths.tolist()):
            draw[0][b, n_compress_slots(config, length, packed=False) :] = float("nan")
            draw[1][b, length:] = draw[2][b, length:] = float("nan")
        ring = as_ring(draw[2], whole, cache.window_ring)
        for b, length in enumerate(whole.lengths.tolist()):
            ring[b, length:] = float("nan")
        kept.append(BranchKV(draw[0], draw[1], ring))
    cache.keys, cache.values = kept
    return cache

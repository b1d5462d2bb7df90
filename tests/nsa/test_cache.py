"""Decoding with a cache gives what one prefill gives, however the tokens are cut."""

from __future__ import annotations

import pytest
import torch
from attention_cases import SMALL
from torch import Tensor

from nsa.attention.decode_attention import decode_attention
from nsa.cache import NSACache, Rows
from nsa.config import AttentionConfig
from nsa.layers.dense import DenseAttention
from nsa.layers.sparse import NSAAttention

N_TOKENS = 45


def layer(**changes: object) -> NSAAttention:
    torch.manual_seed(0)
    return NSAAttention(16, 6, 2, 8, SMALL.model_copy(update=changes), v_head_dim=6).double()


def tokens(batch: int = 2) -> Tensor:
    return torch.randn(batch, N_TOKENS, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def decode(attention: torch.nn.Module, x: Tensor, chunks: list[int]) -> Tensor:
    cache = attention.new_cache()
    with torch.no_grad():
        out = torch.cat([attention(part, cache=cache) for part in x.split(chunks, dim=1)], dim=1)
    assert cache.length == x.shape[1]
    return out


CHUNKS = {
    "token_by_token": [1] * N_TOKENS,
    "a_prefill_then_tokens": [20] + [1] * 9 + [16],
    "a_short_prefill_then_tokens": [3] + [1] * 9 + [33],
    "uneven_chunks": [2, 9, 1, 17, 1, 1, 14],
    "one_prefill": [N_TOKENS],
}


CHANGES = {
    "small": {},
    "window_1": {"window": 1},
    "wide_blocks": {"compress_block": 12, "select_block": 16, "select_count": 3},
    "selected_alone": {"branches": ("selected",)},
    "without_selection": {"branches": ("compressed", "sliding")},
}


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_decoding_equals_the_prefill(chunks, changes):
    attention = layer(**changes)
    prefill = attention(tokens()).detach()
    decoded = decode(attention, tokens(), CHUNKS[chunks])
    torch.testing.assert_close(decoded, prefill, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "sequential", "reference"])
def test_decoding_equals_the_reference_on_every_backend(backend):
    reference = layer(backend="reference")(tokens(batch=1)).detach()
    decoded = decode(layer(backend=backend), tokens(batch=1), CHUNKS["uneven_chunks"])
    torch.testing.assert_close(decoded, reference, rtol=1e-9, atol=1e-12)


DECODED = {"token_by_token": 1, "three_at_once": 3, "nine_at_once": 9}


@pytest.mark.parametrize("at_once", DECODED)
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_rows_of_unlike_lengths_decode_to_what_their_prefill_gives(at_once, changes):
    attention, x, lengths = layer(**changes), tokens(batch=3), torch.tensor([18, 2, 11])
    n_new, prompt = DECODED[at_once], 18
    rows = Rows(lengths.clone(), capacity=N_TOKENS)
    cache = attention.new_decode_cache(rows, n_new)
    with torch.no_grad():
        prefill = attention(x)
        attention(x[:, :prompt], cache=cache)
        for _ in range(27 // n_new):
            news = [slice(start, start + n_new) for start in rows.lengths.tolist()]
            out = attention.decode(torch.stack([row[new] for row, new in zip(x, news, strict=True)]), cache)
            expected = torch.stack([row[new] for row, new in zip(prefill, news, strict=True)])
            torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
            rows.lengths += n_new
    assert rows.lengths.tolist() == [45, 29, 38]


def test_dense_rows_of_unlike_lengths_decode_to_what_their_prefill_gives():
    attention, x = DenseAttention(16, 6, 2, 8).double(), tokens()
    rows = Rows(torch.tensor([9, 4]), capacity=12)
    cache = attention.new_decode_cache(rows)
    with torch.no_grad():
        attention(x[:, :9], cache=cache)
        out = attention.decode(torch.stack([x[0, 9:10], x[1, 4:5]]), cache)
        for b, length in enumerate((10, 5)):
            expected = attention(x[b : b + 1, :length])[0, -1:]
            torch.testing.assert_close(out[b], expected, rtol=1e-9, atol=1e-12)


def test_more_new_tokens_than_a_cache_has_room_for_are_refused():
    attention = layer()
    cache = attention.new_decode_cache(Rows(torch.tensor([9, 4]), capacity=12))
    attention(tokens()[:, :9], cache=cache)
    with pytest.raises(ValueError, match="2 new tokens, but the cache has room for 1 at once"):
        attention.decode(tokens()[:, :2], cache)


@pytest.mark.parametrize(
    ("q", "gates", "message"),
    [
        ((2, 2, 6, 8), (2, 2, 6, 3), r"q is \(2, 2, 6, 8\); it must be \[2, 1 to 1, H, D\]"),
        ((3, 1, 6, 8), (3, 1, 6, 3), r"q is \(3, 1, 6, 8\)"),
        ((2, 1, 6, 4), (2, 1, 6, 3), r"k.compressed is .*, 8\); it must be"),
        ((2, 1, 5, 8), (2, 1, 5, 3), "k.compressed has 2 KV heads, which do not divide the 5 heads of q"),
        ((2, 1, 6, 8), (2, 1, 6, 2), r"gates is \(2, 1, 6, 2\)"),
    ],
)
def test_newest_tokens_that_do_not_fit_a_cache_are_refused(q, gates, message):
    attention = layer()
    cache = attention.new_decode_cache(Rows(torch.tensor([9, 4]), capacity=12))
    with torch.no_grad():
        attention(tokens()[:, :9], cache=cache)
    with pytest.raises(ValueError, match=message):
        decode_attention(torch.randn(q).double(), torch.rand(gates).double(), cache)


def test_the_window_of_the_cache_stops_growing():
    attention = layer()
    cache = attention.new_cache()
    held = []
    with torch.no_grad():
        for token in tokens(batch=1).split(1, dim=1):
            attention(token, cache=cache)
            held.append((cache.keys.sliding.shape[1], cache.values.sliding.shape[1]))
    assert held[-1] == (SMALL.window - 1, SMALL.window - 1)
    assert cache.keys.compressed.shape[1] == (N_TOKENS - 8) // 4 + 1
    assert cache.keys.selected.shape[1] == N_TOKENS


def test_positions_go_on_where_the_cache_ends():
    attention = layer()
    cache = attention.new_cache()
    given = torch.arange(N_TOKENS) + 100  # a shift of all positions, which changes nothing
    parts = zip(tokens().split(9, dim=1), given.split(9), strict=True)
    out = torch.cat([attention(x, positions=p, cache=cache) for x, p in parts], dim=1)
    torch.testing.assert_close(out, attention(tokens()), rtol=1e-9, atol=1e-11)


def test_packed_sequences_and_a_cache_do_not_go_together():
    attention = layer()
    cache = attention.new_cache()
    attention(tokens(batch=1), cache=cache)
    with pytest.raises(ValueError, match="packed sequences have no past"):
        attention(tokens(batch=1), cu_seqlens=torch.tensor([0, N_TOKENS]), cache=cache)
    with pytest.raises(ValueError, match="packed sequences have no past"):
        attention(tokens(batch=1), cu_seqlens=torch.tensor([0, N_TOKENS]), cache=NSACache(AttentionConfig()))

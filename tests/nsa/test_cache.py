"""Decoding with a cache gives what one prefill gives, however the tokens are cut."""

from __future__ import annotations

import pytest
import torch
from attention_cases import SMALL
from torch import Tensor

from nsa.attention.layer import DenseAttention, NSAAttention
from nsa.cache import NSACache
from nsa.config import AttentionConfig

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
    "a_prefill_then_tokens": [20] + [1] * 25,
    "a_short_prefill_then_tokens": [3] + [1] * 42,
    "uneven_chunks": [2, 9, 1, 17, 1, 1, 14],
    "one_prefill": [N_TOKENS],
}


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 1},
        {"compress_block": 12, "select_block": 16, "select_count": 3},
        {"branches": ("selected",)},
        {"branches": ("compressed", "sliding")},
    ],
    ids=["small", "window_1", "wide_blocks", "selected_alone", "without_selection"],
)
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


@pytest.mark.parametrize("chunks", CHUNKS)
def test_dense_decoding_equals_the_dense_prefill(chunks):
    attention = DenseAttention(16, 6, 2, 8).double()
    decoded = decode(attention, tokens(), CHUNKS[chunks])
    torch.testing.assert_close(decoded, attention(tokens()).detach(), rtol=1e-9, atol=1e-12)


def test_the_window_of_the_cache_stops_growing():
    attention = layer()
    cache = attention.new_cache()
    held = []
    for token in tokens().split(1, dim=1):
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

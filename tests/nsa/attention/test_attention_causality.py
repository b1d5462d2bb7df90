"""What a query may see, and what it must see."""

from __future__ import annotations

import functools

import pytest
import torch
from attention_cases import Case, random_inputs

from nsa.attention import nsa_attention
from nsa.attention.blocks import block_layout
from nsa.attention.sliding import sliding_attention
from nsa.config import AttentionConfig
from nsa.layers.dense import DenseAttention
from nsa.layers.sparse import NSAAttention

# Longer than the window, and eight selection blocks of which four are selected.
LENGTHS = AttentionConfig(compress_block=4, compress_stride=2, select_block=4, select_count=4, window=6)
N_TOKENS = 32


def layer(backend: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if backend == "dense":
        return DenseAttention(16, 4, 2, 8).double()
    return NSAAttention(16, 4, 2, 8, LENGTHS.model_copy(update={"backend": backend})).double()


def tokens() -> torch.Tensor:
    return torch.randn(1, N_TOKENS, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@functools.cache
def outputs(backend: str) -> torch.Tensor:
    return layer(backend)(tokens()).detach()


@pytest.mark.parametrize("backend", ["torch", "sequential", "reference", "dense"])
@pytest.mark.parametrize("changed", [7, 20, 31])
def test_a_changed_token_changes_no_output_before_it(backend, changed):
    other = tokens()
    other[:, changed:] += torch.randn(N_TOKENS - changed, 16, dtype=torch.float64)
    with torch.no_grad():
        before, after = outputs(backend), layer(backend)(other)
    torch.testing.assert_close(after[:, :changed], before[:, :changed], rtol=0, atol=1e-14)
    assert (after[:, changed:] != before[:, changed:]).any(-1).all()


@pytest.mark.parametrize("window", [1, 5, 6, 16, 32, 50])
def test_every_key_in_the_window_is_seen_and_no_other(window):
    config = AttentionConfig(window=window)
    inputs = random_inputs(Case(config=config, n_tokens=N_TOKENS, n_heads=2, n_kv_heads=2))
    # With the identity for values, what comes out is each query's probability of each key.
    one_hot = torch.eye(N_TOKENS, dtype=torch.float64)[None, :, None].expand(1, -1, 2, -1)
    layout = block_layout(config, N_TOKENS, torch.device("cpu"))
    probability = sliding_attention(inputs.q, inputs.k.sliding, one_hot, layout)
    query, key = torch.arange(N_TOKENS)[:, None], torch.arange(N_TOKENS)
    in_window = (key <= query) & (key > query - window)
    assert torch.equal(probability[0, :, 0] > 0, in_window)
    assert torch.equal(probability[0, :, 1] > 0, in_window)


@pytest.mark.parametrize("backend", ["torch", "sequential"])
def test_changing_any_key_of_the_window_changes_the_output(backend):
    config = LENGTHS.model_copy(update={"branches": ("sliding",)})
    inputs = random_inputs(Case(config=config, n_tokens=12))

    def last_output(keys: torch.Tensor) -> torch.Tensor:
        k = inputs.k._replace(sliding=keys)
        return nsa_attention(inputs.q, k, inputs.v, inputs.gates, config, backend=backend)[0, 11]

    plain = last_output(inputs.k.sliding)
    for key in range(12):
        changed = inputs.k.sliding.detach().clone()
        changed[0, key] += 1
        assert torch.equal(last_output(changed), plain) == (key < 6), key


@pytest.mark.parametrize("backend", ["torch", "sequential", "dense"])
def test_packed_sequences_give_what_they_give_alone(backend):
    attention, x, lengths = layer(backend), tokens(), [3, 19, 10]
    cu_seqlens = torch.tensor([0, 3, 22, 32], dtype=torch.int32)
    with torch.no_grad():
        alone = torch.cat([attention(part) for part in x.split(lengths, dim=1)], dim=1)
        packed = attention(x, cu_seqlens=cu_seqlens)
    torch.testing.assert_close(packed, alone, rtol=1e-9, atol=1e-12)

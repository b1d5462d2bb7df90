"""The operation with plain tensors, and the layer that takes what other libraries' layers take."""

from __future__ import annotations

import pytest
import torch
from attention_cases import SMALL
from torch import Tensor

import nsa
from nsa import AttentionConfig, BranchKV, ModelConfig, NativeSparseAttention, NSAModel, nsa_attention
from nsa.attention.compressed import BlockCompression
from nsa.attention.inputs import Call
from nsa.attention.reference import reference_attention

LENGTHS = {"compress_block": 8, "compress_stride": 4, "select_block": 8, "select_count": 4, "window": 6}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(n_tokens: int = 45) -> tuple[Tensor, ...]:
    return (
        draw(2, n_tokens, 6, 8), draw(2, n_tokens, 2, 8, seed=1), draw(2, n_tokens, 2, 12, seed=2),
        draw(2, n_tokens, 6, 3, seed=3).sigmoid(),
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["torch", "sequential", "reference"])
def test_plain_keys_and_values_serve_all_branches_and_are_compressed_by_their_mean(backend):
    q, k, v, gates = plain(25)
    phi = BlockCompression(8, SMALL, kind="mean")
    full = [BranchKV(phi(x), x, x) for x in (k, v)]
    expected = reference_attention(Call(q, *full, gates, SMALL))
    torch.testing.assert_close(nsa_attention(q, k, v, gates, SMALL, backend=backend), expected)


def test_the_lengths_are_the_paper_s_by_default():
    q, k, v, gates = plain(150)
    paper = AttentionConfig(
        compress_block=32, compress_stride=16, select_block=64, select_count=16, window=512, initial_blocks=1,
        local_blocks=2,
    )  # fmt: skip
    assert torch.equal(nsa_attention(q, k, v, gates), nsa_attention(q, k, v, gates, paper))


def test_fewer_queries_than_keys_are_the_last_ones():
    q, k, v, gates = plain()
    whole = nsa_attention(q, k, v, gates, SMALL)
    torch.testing.assert_close(nsa_attention(q[:, -3:], k, v, gates[:, -3:], SMALL), whole[:, -3:])


def test_plain_packed_sequences_are_what_each_is_alone():
    q, k, v, gates = (x[:1] for x in plain())
    packed = nsa_attention(q, k, v, gates, SMALL, cu_seqlens=torch.tensor([0, 30, 45]))
    for start, end in ((0, 30), (30, 45)):
        alone = nsa_attention(*(x[:, start:end] for x in (q, k, v, gates)), SMALL)
        torch.testing.assert_close(packed[:, start:end], alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v, g: (q, k[:, :40], v, g), r"k is \(2, 40, 2, 8\); it must be \[B, S, Hkv, D\]"),
        (lambda q, k, v, g: (q, k, v[:, 1:], g), r"v is \(2, 44, 2, 12\)"),
        (lambda q, k, v, g: (q, k[:, :, 0], v, g), r"k is \(2, 45, 8\)"),
        (
            lambda q, k, v, g: (q, BranchKV(k, k, k), v, g),
            "k is a BranchKV; k and v are both tensors, or both",
        ),
        (lambda q, k, v, g: (q, k[..., :4], v, g), r"k is \(2, 45, 2, 4\); it must be .*\[2, 45, Hkv, 8\]"),
        (lambda q, k, v, g: (q, k[:1], v, g), r"k is \(1, 45, 2, 8\)"),
        (lambda q, k, v, g: (q, k.long(), v, g), "k is torch.int64; it must have the dtype of q"),
        (lambda q, k, v, g: (q, k, v.float(), g), "v is torch.float32; it must have the dtype of q"),
        (lambda q, k, v, g: (q, k, v[:, :, :1], g), r"v is \(2, 45, 1, 12\); it must be .* as its keys"),
        (lambda q, k, v, g: (q, k[:, :, [0, 1, 0, 1]], v, g), "k has 4 KV heads, which do not divide the 6"),
        (lambda q, k, v, g: (q, k, v.to("meta"), g), "v is on meta; q is on cpu"),
        (lambda q, k, v, g: (None, k, v, g), "q is a NoneType; it must be a tensor"),
        (lambda q, k, v, g: (q, k, v, [1.0]), "gates is a list; it must be a tensor"),
    ],
)
def test_plain_tensors_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        nsa_attention(*change(*plain()), SMALL)
    with pytest.raises(ValueError, match="past_length is 7; k has 45 tokens and q 45, so it is 0"):
        nsa_attention(*plain(), SMALL, past_length=7)


@pytest.mark.parametrize(
    ("borders", "message"),
    [
        ([0, 45], "cu_seqlens is a list; it must be a tensor"),
        (torch.tensor([0.0, 45.0]), "cu_seqlens is torch.float32"),
        (torch.tensor([0, 46]), "end at the row's 45 tokens or before"),
    ],
)
def test_borders_of_plain_tensors_are_checked_before_anything_is_compressed(borders, message):
    with pytest.raises(ValueError, match=message):
        nsa_attention(*(x[:1] for x in plain()), SMALL, cu_seqlens=borders)


def layer(**others: object) -> NativeSparseAttention:
    torch.manual_seed(0)
    return NativeSparseAttention(16, 4, 2, **LENGTHS, **others).double()


def test_the_layer_s_defaults_are_the_paper_s():
    with torch.device("meta"):
        attention = NativeSparseAttention()
    assert (attention.n_heads, attention.n_kv_heads, attention.head_dim) == (64, 4, 32)
    assert attention.config == AttentionConfig()


def test_the_layer_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"unknown key 'windw'.*did you mean 'window'"):
        NativeSparseAttention(16, 4, 2, windw=3)
    with pytest.raises(ValueError, match="the head dim must be even; it is 5"):
        NativeSparseAttention(20, 4, 2)


def masked(side: str) -> tuple[Tensor, Tensor]:
    x, mask = draw(3, 30, 16), torch.zeros(3, 30, dtype=torch.int64)
    for row, length in enumerate((30, 4, 17)):
        mask[row, slice(30 - length, None) if side == "left" else slice(0, length)] = 1
    return x, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_mask_gives_every_row_what_it_is_alone_and_padding_0(side):
    attention, (x, mask) = layer(), masked(side)
    out, weights, cache = attention(x, attention_mask=mask)
    assert weights is None and cache is None
    assert (out[mask == 0] == 0).all()
    for row in range(3):
        kept = mask[row] == 1
        torch.testing.assert_close(out[row, kept], attention(x[row : row + 1, kept])[0][0])


@pytest.mark.parametrize("branches", [("compressed", "selected", "sliding"), ("selected",)])
@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_a_cache_goes_on_where_a_prompt_ended_and_grows(side, branches, monkeypatch):
    monkeypatch.setattr("nsa.cache.ROOM", 2)
    attention = layer(branches=branches)
    x, mask = masked("left" if side == "none" else side)
    mask = torch.ones_like(mask) if side == "none" else mask
    new = draw(3, 12, 16, seed=9)
    out, _, cache = attention(x, None if side == "none" else mask, use_cache=True)
    torch.testing.assert_close(out, attention(x, mask)[0].detach())
    parts = [attention(new[:, a:b], past_key_values=cache)[0] for a, b in ((0, 1), (1, 5), (5, 12))]
    for row in range(3):
        whole = torch.cat([x[row, mask[row] == 1], new[row]])[None]
        expected = attention(whole)[0][0, -12:].detach()
        torch.testing.assert_close(torch.cat([part[row] for part in parts]), expected)


def test_packed_rows_and_padded_new_tokens_have_no_cache():
    attention = layer()
    x, mask = masked("left")
    with pytest.raises(ValueError, match="pad them and give attention_mask"):
        attention(x[:1], use_cache=True, cu_seqlens=torch.tensor([0, 30]))
    cache = attention(x, mask, use_cache=True)[2]
    padded = torch.tensor([[1, 1], [1, 0], [1, 1]])
    for refused, message in (
        ({"attention_mask": torch.cat([mask, padded], dim=1)}, "padding among the tokens after a cache"),
        ({"attention_mask": mask}, r"\[B, seen \+ new\] = \[3, 32\]"),
        ({"attention_mask": torch.ones(3, 32)}, r"keeps .* the cache holds"),
        ({"cu_seqlens": torch.tensor([0, 2])}, "pad them and give attention_mask"),
    ):
        with pytest.raises(ValueError, match=message):
            attention(x[:, :2], past_key_values=cache, **refused)
    with pytest.raises(ValueError, match="past_key_values is a NSACache"):
        attention(x[:, :2], past_key_values=attention.new_cache())
    attention(x[:, :2], torch.cat([mask, torch.ones(3, 2, dtype=mask.dtype)], dim=1), past_key_values=cache)


MODEL = NSAModel(ModelConfig(layers=1, dim=16, heads=2, kv_groups=1, head_dim=8), SMALL)
MASKED = {
    "layer": layer(),
    "layer_with_a_cache": lambda x, mask: layer()(x, mask, use_cache=True),
    "model": lambda x, mask: MODEL(x[..., 0].long(), attention_mask=mask),
    "generate": lambda x, mask: MODEL.generate(x[..., 0].long(), 1, attention_mask=mask),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_is_added_to_scores_or_numbers_documents_is_refused(name):
    x, mask = masked("left")
    for wrong in (torch.where(mask == 1, 0.0, -torch.inf), (mask - 1) * 1e9, mask.cumsum(1)):
        with pytest.raises(ValueError, match=r"attention_mask holds .* 1 at tokens and 0 at padding"):
            MASKED[name](x.abs(), wrong)
    MASKED[name](x.abs(), mask.double())
    MASKED[name](x.abs(), mask.bool())


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_mask_of_another_shape_and_a_mask_with_borders_are_refused(use_cache):
    attention, (x, mask) = layer(), masked("left")
    for wrong in (mask[:, :20], mask[:2], mask.repeat(1, 2)):
        message = rf"attention_mask is \({len(wrong)}, {wrong.shape[1]}\); it must be \[B, T\] = \[3, 30\]"
        with pytest.raises(ValueError, match=message):
            attention(x, wrong, use_cache=use_cache)
    with pytest.raises(ValueError, match=r"give one|not cu_seqlens"):
        attention(x[:1], mask[:1], cu_seqlens=torch.tensor([0, 30]), use_cache=use_cache)


def test_a_row_of_padding_alone_leaves_no_cache_but_has_an_output():
    attention, (x, mask) = layer(), masked("left")
    mask[1] = 0
    assert (attention(x, mask)[0][1] == 0).all()
    with pytest.raises(ValueError, match="attention_mask has no token in row 1"):
        attention(x, mask, use_cache=True)


def test_the_package_offers_what_it_names():
    assert all(getattr(nsa, name) is not None for name in nsa.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nsa.nothing  # noqa: B018

"""Decoding on a GPU: the decode kernels against a prefill and the torch backend, and recorded generation."""

from __future__ import annotations

import pytest
import torch

from nsa.attention import BranchKV, nsa_attention
from nsa.attention.blocks import n_compress_slots
from nsa.attention.decode_attention import decode_attention
from nsa.cache import DecodeCache, Rows, as_ring
from nsa.config import AttentionConfig
from nsa.model import NSAModel
from nsa.options import load_train_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a GPU: `pytest -m gpu` on such a machine"
    ),
]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def filled_cache(config, lengths, kv_heads, dims, n_new, dtype):
    """Random numbers where the rows have tokens, NaN elsewhere."""
    generator = torch.Generator("cuda").manual_seed(0)
    past = torch.tensor(lengths, device="cuda")
    rows = Rows(past, max(lengths) + n_new)
    cache, whole = DecodeCache(config, rows, n_new), Rows(past + n_new, rows.capacity)
    n_blocks = n_compress_slots(config, rows.capacity, packed=False)
    kept = []
    for dim in dims:
        compressed, selected, sliding = (
            torch.randn(len(lengths), n, kv_heads, dim, generator=generator, device="cuda").to(dtype)
            for n in (max(1, n_blocks), rows.capacity, rows.capacity)
        )
        for b, length in enumerate(whole.lengths.tolist()):
            compressed[b, n_compress_slots(config, length, packed=False) :] = float("nan")
            selected[b, length:] = float("nan")
        ring = as_ring(sliding, whole, cache.window_ring)
        for b, length in enumerate(whole.lengths.tolist()):
            ring[b, length:] = float("nan")
        kept.append(BranchKV(compressed, selected, ring))
    cache.keys, cache.values = kept
    return cache


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dims", "lengths", "n_new", "dtype"),
    [
        (12, 2, (64, 64), (4000, 17, 0, 1030), 1, torch.bfloat16),
        (64, 4, (128, 128), (9000,), 1, torch.bfloat16),
        pytest.param(16, 1, (192, 128), (2100, 700), 4, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(3, 3, (256, 256), (1500,), 2, torch.float16, marks=pytest.mark.slow),
        pytest.param(12, 4, (64, 64), (5000, 31), 1, torch.float32, marks=pytest.mark.slow),
        pytest.param(12, 2, (64, 64), (131_000,), 1, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_decoding_equals_the_torch_backend_in_fp32(heads, kv_heads, dims, lengths, n_new, dtype):
    config = AttentionConfig(backend="triton")
    cache = filled_cache(config, lengths, kv_heads, dims, n_new, dtype)
    generator = torch.Generator("cuda").manual_seed(1)
    q = torch.randn(len(lengths), n_new, heads, dims[0], generator=generator, device="cuda").to(dtype)
    gates = torch.rand(len(lengths), n_new, heads, 3, generator=generator, device="cuda").to(dtype)
    actual = decode_attention(q, gates, cache)
    assert torch.equal(actual, decode_attention(q, gates, cache))
    wide = filled_cache(config.model_copy(update={"backend": "torch"}), lengths, kv_heads, dims, n_new, dtype)
    wide.keys, wide.values = (BranchKV(*(x.float() for x in kv)) for kv in (wide.keys, wide.values))
    expected = decode_attention(q.float(), gates.float(), wide)
    assert (actual.float() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_decoding_equals_the_prefill_kernels():
    config = AttentionConfig(backend="triton")
    cache = filled_cache(config, (6000,), 2, (64, 64), 1, torch.bfloat16)
    q = torch.randn(1, 1, 12, 64, device="cuda", dtype=torch.bfloat16)
    gates = torch.rand(1, 1, 12, 3, device="cuda", dtype=torch.bfloat16)
    newest = torch.arange(6001 - 512, 6001, device="cuda") % 512
    k, v = (kv._replace(sliding=kv.sliding[:, newest]) for kv in (cache.keys, cache.values))
    expected = nsa_attention(q, k, v, gates, config, past_length=6000)
    torch.testing.assert_close(decode_attention(q, gates, cache), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_generation_that_cannot_be_recorded_goes_row_by_row():
    torch.manual_seed(0)
    config = load_train_config("tiny", ["attention.branches=selected,sliding"])
    model = NSAModel(config.model, config.attention).cuda()
    prompt = torch.randint(256, (2, 20), device="cuda")
    on_cpu = NSAModel(config.model, config.attention)
    on_cpu.load_state_dict(model.state_dict())
    assert torch.equal(
        model.generate(prompt, 8, temperature=0).cpu(), on_cpu.generate(prompt.cpu(), 8, temperature=0)
    )


@pytest.mark.parametrize("attention", ["nsa", pytest.param("dense", marks=pytest.mark.slow)])
def test_recorded_generation_is_what_full_forwards_would_choose(attention):
    torch.manual_seed(0)
    config = load_train_config("tiny", [f"model.attention={attention}"])
    model = NSAModel(config.model, config.attention).cuda()
    prompt = torch.randint(256, (3, 40), device="cuda")
    generated = model.generate(prompt, 30, lengths=torch.tensor([40, 5, 21]), temperature=0)
    for row, length in enumerate((40, 5, 21)):
        for end in range(length, length + 30):
            expected = model(generated[row, None, :end])[0, -1]
            # Two logits may tie to rounding: what was chosen is as likely as the likeliest.
            assert expected[generated[row, end]] >= expected.max() - 1e-4

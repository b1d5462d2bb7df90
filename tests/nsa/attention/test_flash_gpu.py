"""flash-attn on a GPU: the dense control by its kernels, and the sliding branch held against them."""

from __future__ import annotations

import pytest
import torch

from nsa.attention import BranchKV, backends_used, flash, nsa_attention
from nsa.config import AttentionConfig
from nsa.layers.dense import DenseAttention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(not flash.installed(), reason="pip install --pre flash-attn-4"),
]


def test_the_dense_layer_by_flash_attn_is_the_layer():
    torch.manual_seed(0)
    plain = DenseAttention(256, 8, 2, 64).cuda()
    fast = DenseAttention(256, 8, 2, 64, flash=True).cuda()
    fast.load_state_dict(plain.state_dict())
    results = []
    for layer in (plain, fast):
        x = torch.randn(
            2, 1500, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
        ).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            out = layer(x)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), [x, *layer.parameters()])])
    for a, e in zip(*results, strict=True):
        assert (a.float() - e.float()).norm() <= 1e-2 * e.float().norm()
    assert backends_used().calls[f"dense {fast.flash}"] >= 1


@pytest.mark.skipif("FA4" not in flash.installed(), reason="by the interface of flash-attn-4")
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(64, 4, 128), (12, 4, 64)])
def test_the_sliding_branch_is_flash_attn_with_a_window(heads, kv_heads, dim):
    from flash_attn.cute import flash_attn_func

    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(1, 3000, h, dim, device="cuda", generator=generator).bfloat16().requires_grad_()
        for h in (heads, kv_heads, kv_heads)
    )
    config = AttentionConfig(branches=("sliding",))
    only = [BranchKV(None, None, x) for x in (k, v)]
    ours = nsa_attention(q, *only, q.new_ones(1, 3000, heads, 3), config, backend="triton")
    theirs = flash_attn_func(q, k, v, causal=True, window_size=(config.window - 1, 0))
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    dout = torch.randn(ours.shape, device="cuda", generator=generator).bfloat16()
    gradients = (torch.autograd.grad(out, [q, k, v], dout) for out in (ours, theirs))
    for a, e in zip((ours, *next(gradients)), (theirs, *next(gradients)), strict=True):
        assert (a.float() - e.float()).norm() <= 8e-3 * e.float().norm()

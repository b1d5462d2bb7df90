"""Every attention kernel once, on a GPU, at a shape that a sanitizer can follow: plain, short, packed and decoding.

usage: run_kernels.py
"""

import torch

from nsa.attention import BranchKV, nsa_attention
from nsa.attention.blocks import n_compress_slots
from nsa.attention.decode_attention import decode_attention
from nsa.attention.kernels import descriptors
from nsa.cache import DecodeCache, Rows
from nsa.config import AttentionConfig

CONFIG = AttentionConfig(
    compress_block=8, compress_stride=4, select_block=16, select_count=4, window=24, backend="triton"
)
N_TOKENS = 203  # ragged in every tile
FEW_TOKENS = 103  # at most twice as many blocks as are selected: a bit for each, and no lists


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16).requires_grad_()


def train(cu_seqlens: torch.Tensor | None, n_tokens: int = N_TOKENS, dim: int = 64) -> None:
    lengths = (n_compress_slots(CONFIG, n_tokens, packed=cu_seqlens is not None), n_tokens, n_tokens)
    k, v = (BranchKV(*(draw(1, n, 2, dim) for n in lengths)) for _ in range(2))
    gates = draw(1, n_tokens, 6, 3).sigmoid()
    out = nsa_attention(draw(1, n_tokens, 6, dim), k, v, gates, CONFIG, cu_seqlens=cu_seqlens)
    out.backward(torch.ones_like(out))


@torch.no_grad()
def decode() -> None:
    rows = Rows(torch.tensor([N_TOKENS, 5], device="cuda"), 210)
    cache = DecodeCache(CONFIG, rows)
    sizes = (n_compress_slots(CONFIG, 210, packed=False), 210, cache.window_ring)
    cache.keys, cache.values = (BranchKV(*(draw(2, n, 2, 64) for n in sizes)) for _ in range(2))
    decode_attention(draw(2, 1, 6, 64), draw(2, 1, 6, 3).sigmoid(), cache)


train(None)
train(None, FEW_TOKENS)
train(torch.tensor([0, 90, 91, 160], device="cuda"))
train(torch.tensor([0, 40, 41, 90], device="cuda"), FEW_TOKENS)
decode()
descriptors.WORTHWHILE = 0  # tiles by descriptors, where there are any
train(None)
train(None, FEW_TOKENS)
train(None, dim=128)
train(None, FEW_TOKENS, dim=128)
torch.cuda.synchronize()
print("ran")

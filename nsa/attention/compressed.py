"""The compressed branch: φ turns each block of tokens into one key and one value (Eq. 7), then attention."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa.attention.blocks import BlockLayout, compress_tokens, n_compress_slots
from nsa.attention.dense import grouped_attention
from nsa.config import AttentionConfig


class BlockCompression(nn.Module):
    """φ of Eq. 7: a block of l tokens of one head to one vector, with the same weights for every head.

    "mlp" adds a learned vector for each place in the block (the paper's intra-block position encoding) and
    maps the concatenated tokens through two layers; "mean" has no parameters. Keys and values need one each.
    """

    def __init__(
        self, head_dim: int, config: AttentionConfig, *, kind: Literal["mlp", "mean"] | None = None
    ) -> None:
        """`kind` overrides `config.compression`."""
        super().__init__()
        self.config = config
        self.kind = kind or config.compression
        if self.kind == "mlp":
            self.place = nn.Parameter(torch.empty(config.compress_block, head_dim))
            self.reset_parameters()
            self.mlp = nn.Sequential(
                nn.Linear(config.compress_block * head_dim, 2 * head_dim),
                nn.SiLU(),
                nn.Linear(2 * head_dim, head_dim),
            )

    def reset_parameters(self) -> None:
        """Initialise the vectors of the places; the MLP initialises itself."""
        if self.kind == "mlp":
            nn.init.normal_(self.place, std=0.02)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        """[B, T, Hkv, D] to [B, NC, Hkv, D]; NC is 0 while T < l, an upper bound for packed sequences."""
        return self.compress(blocks_of(x, self.config, cu_seqlens).transpose(2, 3))

    def compress(self, block: Tensor) -> Tensor:
        """[..., l, D] to [..., D]."""
        if self.kind == "mean":
            return block.mean(-2)
        return self.mlp((block + self.place).flatten(-2))


def blocks_of(x: Tensor, config: AttentionConfig, cu_seqlens: Tensor | None = None) -> Tensor:
    """The tokens of every compression block: [B, T, Hkv, D] to [B, NC, l, Hkv, D]."""
    n_blocks = n_compress_slots(config, x.shape[1], packed=False)
    if cu_seqlens is not None or not n_blocks:
        return x[:, compress_tokens(config, x.shape[1], x.device, cu_seqlens)]
    # Slices of strides: the backward of an index would add with atomics, in any order.
    stride, in_block = config.compress_stride, config.compress_block // config.compress_stride
    strides = x[:, : (n_blocks + in_block - 1) * stride].unflatten(1, (-1, stride))
    return torch.cat([strides[:, i : i + n_blocks] for i in range(in_block)], dim=2)


def mean_of_blocks(x: Tensor, config: AttentionConfig, cu_seqlens: Tensor | None = None) -> Tensor:
    """φ without parameters: [B, T, Hkv, D] to [B, NC, Hkv, D]."""
    return blocks_of(x, config, cu_seqlens).mean(2)


def compressed_attention(q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout) -> Tensor:
    """Eq. 5 on the compressed branch: q [B, T, H, Dqk], k and v [B, NC, Hkv, D]; returns [B, T, H, Dv].

    A query that sees no complete block gets 0, and so are its gradients.
    """
    visible = layout.sees_compressed()
    # Such a query attends to one extra key and value of zeros, so that no softmax is empty, even if NC is 0.
    sees_none = ~visible.any(dim=1, keepdim=True)
    k, v = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k, v))
    return grouped_attention(q, k, v, torch.cat([visible, sees_none], dim=1)[None, None])



from __future__ import annotations

from torch import Tensor

from nsa.attention.blocks import block_layout
from nsa.attention.compressed import compressed_attention
from nsa.attention.inputs import BRANCHES, BranchKV
from nsa.attention.selected import select_blocks, selected_attention
from nsa.attention.sliding import sliding_attention
from nsa.config import AttentionConfig


def vectorised_attention(
    q: Tensor,
    k: BranchKV,
    v: BranchKV,
    gates: Tensor,
    config: AttentionConfig,
    *,
    cu_seqlens: Tensor | None = None,
    past_length: int = 0,
) -> Tensor:
    """Eq. 5, the gated sum of the branches; arguments and result as in `nsa_attention`.

    The selected branch masks dense attention, so its work grows with T * S, and it keeps a [B * Hkv, T, S]
    mask in q's dtype for backward (34 MB a layer for 2,048 tokens and 2 KV heads in fp32).
    """
    layout = block_layout(config, q.shape[1], q.device, cu_seqlens, past_length)
    out = None
    for branch in config.branches:
        if branch == "compressed":
            part = compressed_attention(q, k.compressed, v.compressed, layout)
        elif branch == "selected":
            blocks = select_blocks(q, k.compressed, layout)
            part = selected_attention(q, k.selected, v.selected, blocks, layout)
        else:
            part = sliding_attention(q, k.sliding, v.sliding, layout)
        part = gates[..., BRANCHES.index(branch), None] * part
        out = part if out is None else out + part
    return out



from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.blocks import BlockLayout
from nsa.attention.dense import grouped_attention


def sliding_attention(q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout) -> Tensor:
    """Eq. 5 on the sliding branch: q [B, T, H, Dqk]; k and v are the newest tokens, [B, <= S, Hkv, D].

    Returns [B, T, H, Dv]. Queries go in chunks of w against the 2w - 1 keys that any of them sees, so work
    and memory grow with T * w.
    """
    batch, n_queries = q.shape[:2]
    window = min(layout.config.window, layout.n_tokens)
    chunk = min(window, n_queries)
    n_chunks = -(-n_queries // chunk)
    padding = n_chunks * chunk - n_queries
    # A negative pad drops cached keys that have left the first query's window.
    before = window - 1 - (k.shape[1] - n_queries)
    k, v = (_chunks(F.pad(x, (0, 0, 0, 0, before, padding)), window, chunk) for x in (k, v))
    q = F.pad(q, (0, 0, 0, 0, 0, padding)).unflatten(1, (n_chunks, chunk)).flatten(0, 1)
    visible = _visible(layout, window, chunk, n_chunks)[:, None].repeat(batch, 1, 1, 1)
    out = grouped_attention(q, k, v, visible)
    return out.unflatten(0, (batch, n_chunks)).flatten(1, 2)[:, :n_queries]


def _chunks(x: Tensor, window: int, chunk: int) -> Tensor:
    """[B, chunks * chunk + w - 1, Hkv, D] to the keys of each chunk, [B * chunks, chunk + w - 1, Hkv, D]."""
    return x.unfold(1, chunk + window - 1, chunk).permute(0, 1, 4, 2, 3).flatten(0, 1)


def _visible(layout: BlockLayout, window: int, chunk: int, n_chunks: int) -> Tensor:
    """bool [chunks, chunk, chunk + w - 1]: in the window, not in the future, in the query's sequence."""
    first = layout.query[0]
    query = first + torch.arange(n_chunks * chunk, device=first.device).view(n_chunks, chunk, 1)
    key = query[:, :1] - (window - 1) + torch.arange(chunk + window - 1, device=first.device)
    start = F.pad(layout.query_start, (0, n_chunks * chunk - len(layout.query))).view(n_chunks, chunk, 1)
    return (key <= query) & (key > query - window) & (key >= start)

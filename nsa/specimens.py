"""Wrong or slow code on purpose, as found in practice, for `nsadiag` to diagnose; used only if requested by name."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsa.attention.blocks import BlockLayout, block_layout
from nsa.attention.inputs import BRANCHES, BranchKV, Call
from nsa.attention.selected import select_blocks, selected_keys


def recompute_late_bound(
    blocks: Iterable[nn.Module], x: tuple[Tensor, Tensor | None], every: int, reentrant: bool
) -> Tensor:
    """Activation checkpointing with a well-known closure bug: every recomputation runs the last block of the loop."""
    out, cu_seqlens = x
    for index, block in enumerate(blocks):
        # The bug on purpose: the lambda looks `block` up when it recomputes, after the loop has ended.
        late = lambda inp: block(inp, cu_seqlens)  # noqa: B023, E731
        if index % every == 0:
            out = checkpoint(late, out, use_reentrant=reentrant, preserve_rng_state=False)
        else:
            out = block(out, cu_seqlens)
    return out


def sequential_attention(call: Call) -> Tensor:
    """Backend "sequential", Eq. 5 for one token after another in Python.

    Its results equal those of the other backends, with about 95 autograd nodes per token and layer (2 KV heads) instead
    of 200 per layer. Twelve layers of 2,048 tokens make over two million nodes: forward and backward take minutes, but
    complete. People have reported such runs as "backward hangs".
    """
    q, k, v, gates, config, cu_seqlens, past_length = call
    layout = block_layout(config, q.shape[1], q.device, cu_seqlens, past_length)
    tokens = []
    for t in range(q.shape[1]):
        query = layout.of_query(t)
        seen = {name: _keys_seen(name, q[:, t : t + 1], k, query) for name in config.branches}
        branches = [_attend_rows(q[:, t], getattr(k, name), getattr(v, name), seen[name]) for name in seen]
        gated = [
            gates[:, t, :, BRANCHES.index(name), None] * o for name, o in zip(seen, branches, strict=True)
        ]
        tokens.append(torch.stack(gated).sum(0))
    return torch.stack(tokens, dim=1).to(q.dtype)


def _keys_seen(branch: str, q: Tensor, k: BranchKV, layout: BlockLayout) -> Tensor:
    """bool [B, Hkv, keys] for the one query of `layout`."""
    batch, n_kv_heads = q.shape[0], getattr(k, branch).shape[2]
    if branch == "compressed":
        return layout.sees_compressed().expand(batch, n_kv_heads, -1)
    if branch == "selected":
        return selected_keys(select_blocks(q, k.compressed, layout), layout).squeeze(2)
    newest = torch.arange(layout.n_tokens, device=q.device)[-k.sliding.shape[1] :]
    in_window = (newest > layout.query - layout.config.window) & (newest >= layout.query_start)
    return (in_window & (newest <= layout.query)).expand(batch, n_kv_heads, -1)


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """q [B, H, Dqk], k and v [B, S, Hkv, D], seen [B, Hkv, S]: one row and KV head at a time, [B, H, Dv]."""
    rows = []
    for b in range(q.shape[0]):
        groups = q[b].chunk(k.shape[2])
        heads = [_attend(q, k[b, :, h], v[b, :, h], seen[b, h]) for h, q in enumerate(groups)]
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """q [G, Dqk], k and v [S, D], seen [S]; 0 where no key is visible."""
    visible = seen.nonzero().squeeze(-1)
    p = torch.softmax(q @ k[visible].T * q.shape[-1] ** -0.5, dim=-1)
    return p @ v[visible]

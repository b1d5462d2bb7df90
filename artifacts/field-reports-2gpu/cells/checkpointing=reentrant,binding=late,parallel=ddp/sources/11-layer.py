

from __future__ import annotations

import torch
from torch import Tensor, nn

from nsa.attention import BRANCHES, BranchKV, nsa_attention
from nsa.attention.blocks import block_layout, compress_tokens, sequence_borders
from nsa.attention.compressed import BlockCompression
from nsa.attention.dense import grouped_attention
from nsa.attention.inputs import check_packing, keys_read
from nsa.attention.rope import apply_rope
from nsa.attention.selected import select_blocks, selected_key_counts
from nsa.cache import DenseCache, NSACache
from nsa.config import AttentionConfig


class NSAAttention(nn.Module):
    """Native Sparse Attention with its projections: x [B, T, dim] to [B, T, dim].

    Positions are rotary. φ reads keys that are not rotated yet, and the compressed key then takes the
    position of its block's last token: so scores depend on distances alone, which an MLP over rotated keys
    would break, and a block is as near as its newest token. One rotated query serves all branches.

    Only the branches of `config.branches` get projections. If selection runs without the compressed branch,
    nothing would train φ, so blocks are scored by the mean of the selected branch's own keys.

    With `collect_stats` on, a forward leaves `last_gates` [B, T, H, 3] and `last_selected_counts` [B, Hkv, T]
    (visible keys of the selected blocks), detached and still on the device.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        config: AttentionConfig,
        *,
        v_head_dim: int | None = None,
        rope_base: float = 10_000.0,
    ) -> None:
        super().__init__()
        _check_heads(n_heads, n_kv_heads)
        self.config = config
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        self.rope_base = rope_base
        self.collect_stats = False
        self.last_gates: Tensor | None = None
        self.last_selected_counts: Tensor | None = None

        kv_dim = n_kv_heads * (head_dim + self.v_head_dim)
        self.q_proj = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.kv_proj = nn.ModuleDict({name: nn.Linear(dim, kv_dim, bias=False) for name in config.branches})
        self.compress_k = self.compress_v = None
        if "compressed" in config.branches:
            self.compress_k = BlockCompression(head_dim, config)
            self.compress_v = BlockCompression(self.v_head_dim, config)
        elif "selected" in config.branches:
            self.compress_k = BlockCompression(head_dim, config, kind="mean")
        n_gates = n_heads * len(BRANCHES)
        self.gate = nn.Sequential(nn.Linear(dim, n_gates), nn.SiLU(), nn.Linear(n_gates, n_gates))
        self.o_proj = nn.Linear(n_heads * self.v_head_dim, dim, bias=False)

    def new_cache(self) -> NSACache:
        """An empty cache, for one batch of sequences."""
        return NSACache(self.config)

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: NSACache | None = None,
    ) -> Tensor:
        """Attend causally within x [B, T, dim], and to the tokens in `cache`, which x then joins.

        `positions` is [T] or [B, T]; by default tokens are counted from the start of their sequence.
        `cu_seqlens` as in `nsa_attention`; not together with a cache (ValueError).
        """
        past_length = cache.length if cache is not None else 0
        check_packing(x.shape[0], cu_seqlens, past=cache is not None)
        if positions is None:
            positions = token_positions(x.shape[1], x.device, cu_seqlens, past_length)
        positions = torch.atleast_2d(positions)
        q = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim))
        q = apply_rope(q, positions, self.rope_base)
        k, v = self._keys_and_values(x, positions, cu_seqlens, cache)
        gates = self.gate(x).sigmoid().unflatten(-1, (self.n_heads, len(BRANCHES)))
        out = nsa_attention(q, k, v, gates, self.config, cu_seqlens=cu_seqlens, past_length=past_length)
        if self.collect_stats:
            self._remember(q, k, gates, cu_seqlens, past_length)
        return self.o_proj(out.flatten(2))

    def _keys_and_values(
        self, x: Tensor, positions: Tensor, cu_seqlens: Tensor | None, cache: NSACache | None
    ) -> tuple[BranchKV, BranchKV]:
        """What the branches attend to, by branch: the tokens of x, after those of the cache."""
        raw_k, v = {}, {}
        for name, projection in self.kv_proj.items():
            kv = projection(x).unflatten(-1, (self.n_kv_heads, self.head_dim + self.v_head_dim))
            raw_k[name], v[name] = kv.split([self.head_dim, self.v_head_dim], dim=-1)
        k = {name: apply_rope(key, positions, self.rope_base) for name, key in raw_k.items()}
        if "compressed" in keys_read(self.config):
            source = raw_k["compressed"] if "compressed" in raw_k else raw_k["selected"].detach()
            k["compressed"], v["compressed"] = self._compress(
                source, v.get("compressed"), positions, cu_seqlens, cache
            )
        keys, values = (BranchKV(*(kv.get(name) for name in BRANCHES)) for kv in (k, v))
        return (keys, values) if cache is None else cache.append(x.shape[1], keys, values)

    def _compress(
        self,
        k: Tensor,
        v: Tensor | None,
        positions: Tensor,
        cu_seqlens: Tensor | None,
        cache: NSACache | None,
    ) -> tuple[Tensor, Tensor | None]:
        """φ of the blocks that are now complete, keys rotated to the position of the block's last token."""
        if cache is not None:
            k, v, positions = cache.await_blocks(k, v, positions)
        last = compress_tokens(self.config, k.shape[1], k.device, cu_seqlens)[:, -1]
        k = apply_rope(self.compress_k(k, cu_seqlens), positions[:, last], self.rope_base)
        return k, v if v is None else self.compress_v(v, cu_seqlens)

    @torch.no_grad()
    def _remember(
        self, q: Tensor, k: BranchKV, gates: Tensor, cu_seqlens: Tensor | None, past_length: int
    ) -> None:
        self.last_gates = gates.detach()
        self.last_selected_counts = None
        if "selected" in self.config.branches:
            layout = block_layout(self.config, q.shape[1], q.device, cu_seqlens, past_length)
            blocks = select_blocks(q, k.compressed, layout)
            self.last_selected_counts = selected_key_counts(blocks, layout)


class DenseAttention(nn.Module):
    """Causal attention to every key, grouped query heads, rotary positions: the control of NSAAttention."""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        rope_base: float = 10_000.0,
    ) -> None:
        super().__init__()
        _check_heads(n_heads, n_kv_heads)
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        self.rope_base = rope_base
        self.q_proj = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.v_head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.v_head_dim, dim, bias=False)

    def new_cache(self) -> DenseCache:
        """An empty cache, for one batch of sequences."""
        return DenseCache()

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: DenseCache | None = None,
    ) -> Tensor:
        """Attend causally within x [B, T, dim]; arguments as in `NSAAttention.forward`."""
        past_length = cache.length if cache is not None else 0
        check_packing(x.shape[0], cu_seqlens, past=cache is not None)
        if positions is None:
            positions = token_positions(x.shape[1], x.device, cu_seqlens, past_length)
        q = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (self.n_kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.n_kv_heads, self.v_head_dim))
        q, k = (apply_rope(heads, positions, self.rope_base) for heads in (q, k))
        if cache is not None:
            k, v = cache.append(k, v)
        visible = _causal(x.shape[1], x.device, cu_seqlens, past_length)
        return self.o_proj(grouped_attention(q, k, v, visible).flatten(2))


def token_positions(
    n_tokens: int, device: torch.device, cu_seqlens: Tensor | None = None, past_length: int = 0
) -> Tensor:
    """int64 [T]: each token's place in its sequence."""
    tokens = torch.arange(past_length, past_length + n_tokens, device=device)
    if cu_seqlens is None:
        return tokens
    return tokens - _sequence_start(tokens, cu_seqlens)


def _causal(
    n_queries: int, device: torch.device, cu_seqlens: Tensor | None, past_length: int
) -> Tensor | None:
    """bool [1, 1, T, S]; None where plain causal attention will do."""
    if cu_seqlens is None and not past_length:
        return None
    keys = torch.arange(past_length + n_queries, device=device)
    queries = keys[past_length:, None]
    visible = keys <= queries
    if cu_seqlens is not None:
        visible = visible & (keys >= _sequence_start(keys, cu_seqlens)[:, None])
    return visible[None, None]


def _sequence_start(tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
    borders = sequence_borders(len(tokens), tokens.device, cu_seqlens)
    return borders[torch.searchsorted(borders, tokens, right=True) - 1]


def _check_heads(n_heads: int, n_kv_heads: int) -> None:
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads is {n_heads}, which n_kv_heads ({n_kv_heads}) does not divide")

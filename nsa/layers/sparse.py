"""Native Sparse Attention as a layer of a model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa.attention import BRANCHES, BranchKV, nsa_attention
from nsa.attention.blocks import block_layout, compress_tokens
from nsa.attention.compressed import BlockCompression
from nsa.attention.decode_attention import decode_attention, decode_backend
from nsa.attention.inputs import check_heads, check_packing, check_positions, check_sharded, check_states
from nsa.attention.selected import select_blocks, selected_key_counts
from nsa.cache import DecodeCache, NSACache, Rows
from nsa.config import AttentionConfig
from nsa.context import ContextShard
from nsa.layers.columns import Columns
from nsa.layers.pieces import pieces_of
from nsa.layers.rope import RotationTable, rotate, rotation_of, rotations_of_row
from nsa.layers.selection_loss import selection_loss, with_loss

_ALIGNED = 8  # bf16 columns in 16 bytes


class NSAAttention(nn.Module):
    """Native Sparse Attention with its projections: x [B, T, dim] to [B, T, dim].

    Positions are rotary. φ reads keys that are not rotated yet; the compressed key is then rotated to the position of
    its block's last token. Scores then depend on distances only, which they would not if φ, an MLP, read rotated keys.
    All branches use the same rotated query. Layers of equal head dim may share their `rotations`.

    One matrix, `in_proj`, makes the queries and the keys and values of all branches in one large product. Only the
    branches of `config.branches` have columns in it. Without the compressed branch φ would not be trained, so selection
    then scores blocks by the mean of the selected branch's keys.

    With `collect_stats` a forward sets `last_gates` [B, T, H, 3] and `last_selected_counts` [B, Hkv, T] (visible keys of
    the selected blocks), detached, on the device. A `selection_loss` above 0 adds the gradients of that loss, so weighted,
    to those of the output.
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
        rotations: RotationTable | None = None,
    ) -> None:
        super().__init__()
        check_heads(n_heads, n_kv_heads)
        self.config = config
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        self.rotations = rotations or RotationTable(head_dim)
        self.context: ContextShard | None = None  # set: x is this rank's part of the sequence
        self.collect_stats = False
        self.selection_loss = 0.0  # the weight of that loss in training
        self.last_gates: Tensor | None = None
        self.last_selected_counts: Tensor | None = None

        self._columns = Columns(config.branches, n_heads, n_kv_heads, head_dim, self.v_head_dim)
        self.in_proj = nn.Linear(dim, self._columns.width, bias=False)
        self.compress_k = self.compress_v = None
        if "compressed" in config.branches:
            self.compress_k = BlockCompression(head_dim, config)
            self.compress_v = BlockCompression(self.v_head_dim, config)
        elif "selected" in config.branches:
            self.compress_k = BlockCompression(head_dim, config, kind="mean")
        n_gates = n_heads * len(BRANCHES)
        self.gate = nn.Sequential(nn.Linear(dim, n_gates), nn.SiLU(), nn.Linear(n_gates, n_gates))
        self.gate.requires_grad_(config.gate_gradients)  # without, DDP must not wait for them
        self.o_proj = nn.Linear(n_heads * self.v_head_dim, dim, bias=False)

    def new_cache(self) -> NSACache:
        """An empty cache, for one batch of sequences."""
        return NSACache(self.config)

    def new_decode_cache(self, rows: Rows, new_tokens: int = 1) -> DecodeCache:
        """An empty cache for `decode`, which then takes at most `new_tokens` tokens a call."""
        return DecodeCache(self.config, rows, new_tokens)

    def records(self, cache: DecodeCache) -> bool:
        """Whether `decode` can be part of a CUDA graph, with a prompt in `cache`."""
        return decode_backend(cache)[0] == "triton"

    def decode(self, x: Tensor, cache: DecodeCache) -> Tensor:
        """Attend from the next tokens x [B, T, dim] of each row to those in `cache`, which x then joins.

        `cache.rows.lengths` are those before x; the caller adds T after calling all layers.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        turn = self.rotations.at(cache.rows.tokens(x.shape[1]), cache.positions, wide)
        q, k, v = self._columns.split(self.in_proj(x), turn)
        cache.write(k, v)
        if self.compress_k is not None:
            slots, raw_k, raw_v = cache.newest_blocks(x.shape[1])
            last = slots * self.config.compress_stride + self.config.compress_block - 1
            turn = self.rotations.at(last, cache.positions, wide)
            new_k = rotate(self.compress_k.compress(raw_k.transpose(2, 3)), turn)
            new_v = raw_v if raw_v is None else self.compress_v.compress(raw_v.transpose(2, 3))
            cache.write_blocks(slots, new_k, new_v)
        gates = self._gates(x)
        return self.o_proj(decode_attention(q, gates, cache).flatten(2))

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
        check_states(x, self.in_proj.in_features)
        check_positions(positions, x)
        if self.context is not None:
            check_sharded(positions, cache)
            return self._forward_sharded(x, self.context, cu_seqlens)
        past_length = cache.length if cache is not None else 0
        check_packing(*x.shape[:2], cu_seqlens, past=cache is not None)
        turn = rotation_of(self.rotations, x, positions, cu_seqlens, past_length)
        q, k, v = self._columns.split(self.in_proj(x), turn)
        k, v = self._keys_and_values(k, v, turn, cu_seqlens, cache)
        gates = self._gates(x)
        out = nsa_attention(q, k, v, gates, self.config, cu_seqlens=cu_seqlens, past_length=past_length)
        if self.selection_loss and cache is None and torch.is_grad_enabled():
            out = with_loss(out, self.selection_loss * selection_loss(q, k, self.config, cu_seqlens))
        if self.collect_stats:
            self._remember(gates, self._selected_counts(q, k, cu_seqlens, past_length))
        return self.o_proj(out.flatten(2))

    def _forward_sharded(self, x: Tensor, context: ContextShard, cu_seqlens: Tensor | None) -> Tensor:
        """Attend from this rank's tokens to those of all ranks; `cu_seqlens` are of the whole row, best on the CPU."""
        n_tokens = context.size * x.shape[1]
        check_packing(x.shape[0], n_tokens, cu_seqlens, past=False)
        turn = rotations_of_row(self.rotations, x, n_tokens, cu_seqlens)
        q, own_k, own_v = self._columns.split(self.in_proj(x), context.take(turn, 0))
        k, v = self._keys_and_values(*_gathered(context, own_k, own_v), turn, cu_seqlens, None)
        gates = self._gates(x)
        outs, counts = [], []
        for piece in pieces_of(context.spans(x.shape[1]), n_tokens, cu_seqlens, self.config):
            seen = [piece.keys_seen(kv, self.config) for kv in (k, v)]
            part, part_gates = q[:, piece.local], gates[:, piece.local]
            past, borders = piece.past_length, piece.cu_seqlens(x.device)
            outs.append(
                nsa_attention(part, *seen, part_gates, self.config, cu_seqlens=borders, past_length=past)
            )
            if self.collect_stats:
                counts.append(self._selected_counts(part, seen[0], borders, past))
        if self.collect_stats:
            self._remember(gates, None if counts[0] is None else torch.cat(counts, dim=-1))
        return self.o_proj(torch.cat(outs, dim=1).flatten(2))

    def _gates(self, x: Tensor) -> Tensor:
        """[B, T, H, 3], in the order of BRANCHES."""
        gates = self._gates_with_gradient(x)
        return gates if self.config.gate_gradients else gates.detach()

    def _gates_with_gradient(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return self.gate(x).sigmoid().unflatten(-1, (self.n_heads, len(BRANCHES)))
        # cuBLAS has no fast kernels for matrices of, say, 36 columns; compiled, the padding is part of the cast.
        into, _, out = self.gate
        room = -into.out_features % _ALIGNED
        hidden = F.silu(F.linear(x, F.pad(into.weight, (0, 0, 0, room)), F.pad(into.bias, (0, room))))
        gates = F.linear(hidden, F.pad(out.weight, (0, room, 0, room)), F.pad(out.bias, (0, room)))
        return gates[..., : into.out_features].sigmoid().unflatten(-1, (self.n_heads, len(BRANCHES)))

    def _keys_and_values(
        self,
        k: dict[str, Tensor],
        v: dict[str, Tensor],
        turn: Tensor,
        cu_seqlens: Tensor | None,
        cache: NSACache | None,
    ) -> tuple[BranchKV, BranchKV]:
        """The keys and values of the branches: the new tokens, after those of the cache."""
        n_tokens = next(iter(v.values())).shape[1]
        if "compressed" in k:
            raw_k, raw_v = k["compressed"], v.get("compressed")
            k["compressed"], v["compressed"] = self._compress(raw_k, raw_v, turn, cu_seqlens, cache)
        keys, values = (BranchKV(*(kv.get(name) for name in BRANCHES)) for kv in (k, v))
        return (keys, values) if cache is None else cache.append(n_tokens, keys, values)

    def _compress(
        self, k: Tensor, v: Tensor | None, turn: Tensor, cu_seqlens: Tensor | None, cache: NSACache | None
    ) -> tuple[Tensor, Tensor | None]:
        """Apply φ to the blocks that are now complete; keys are rotated to the position of the block's last token."""
        if turn.dim() == 2:
            turn = turn[None]
        if cache is not None:
            k, v, turn = cache.await_blocks(k, v, turn)
        compressed = self.compress_k(k, cu_seqlens)
        if cu_seqlens is None:
            stride, last = self.config.compress_stride, self.config.compress_block - 1
            turn = turn[:, last::stride]
        else:
            turn = turn[:, compress_tokens(self.config, k.shape[1], k.device, cu_seqlens)[:, -1]]
        return rotate(compressed, turn), v if v is None else self.compress_v(v, cu_seqlens)

    @torch.no_grad()
    def _selected_counts(
        self, q: Tensor, k: BranchKV, cu_seqlens: Tensor | None, past_length: int
    ) -> Tensor | None:
        if "selected" not in self.config.branches:
            return None
        layout = block_layout(self.config, q.shape[1], q.device, cu_seqlens, past_length)
        return selected_key_counts(select_blocks(q, k.compressed, layout), layout)

    def _remember(self, gates: Tensor, selected_counts: Tensor | None) -> None:
        self.last_gates, self.last_selected_counts = gates.detach(), selected_counts


def _gathered(
    context: ContextShard, k: dict[str, Tensor], v: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The keys and values of all ranks, by branch, in one collective."""
    tensors = [*k.values(), *v.values()]
    everything = context.gather(torch.cat([x.flatten(2) for x in tensors], dim=-1))
    parts = everything.split([x.shape[2] * x.shape[3] for x in tensors], dim=-1)
    parts = [part.unflatten(-1, x.shape[2:]) for part, x in zip(parts, tensors, strict=True)]
    return dict(zip(k, parts, strict=False)), dict(zip(v, parts[len(k) :], strict=True))

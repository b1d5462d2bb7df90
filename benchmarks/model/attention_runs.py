"""Inputs of `attention.py`, and by name the calls that it times, ours and its rivals'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from nsa.attention import BranchKV, flash, nsa_attention
from nsa.attention.blocks import n_compress_slots
from nsa.attention.kernels import branches, gates
from nsa.attention.kernels.bands import band
from nsa.attention.kernels.selected import choose, gather
from nsa.config import AttentionConfig
from nsa.layers.dense import DenseAttention
from nsa.layers.sparse import NSAAttention

CONFIG = AttentionConfig()
LENGTHS = band.Lengths(
    CONFIG.compress_stride, CONFIG.compress_block, CONFIG.select_block, CONFIG.window, past=0
)
SELECTION = choose.Selection(
    stride=CONFIG.compress_stride, length=CONFIG.compress_block, block=CONFIG.select_block,
    count=CONFIG.select_count, initial=CONFIG.initial_blocks, local=CONFIG.local_blocks,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Heads and head dim of an attention layer."""

    heads: int
    kv_heads: int
    dim: int


SHAPES = {"paper": Shape(heads=64, kv_heads=4, dim=128), "small": Shape(heads=12, kv_heads=4, dim=64)}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One call of nsa_attention, and the gradient of its output."""

    q: Tensor
    k: BranchKV
    v: BranchKV
    gates: Tensor
    dout: Tensor

    def leaves(self) -> list[Tensor]:
        return [self.q, *self.k, *self.v, self.gates]


def make_inputs(shape: Shape, n_tokens: int, *, local: bool) -> Inputs:
    """Normal keys, values and gates; queries as the module's docstring says."""
    torch.manual_seed(0)

    def normal(n: int, heads: int) -> Tensor:
        return torch.randn(1, n, heads, shape.dim, device="cuda", dtype=torch.bfloat16)

    n_compressed = n_compress_slots(CONFIG, n_tokens, packed=False)
    lengths = (n_compressed, n_tokens, n_tokens)
    q = _slow_queries(shape, n_tokens) if local else normal(n_tokens, shape.heads)
    return Inputs(
        q=q.requires_grad_(),
        k=BranchKV(*(normal(n, shape.kv_heads).requires_grad_() for n in lengths)),
        v=BranchKV(*(normal(n, shape.kv_heads).requires_grad_() for n in lengths)),
        gates=normal(n_tokens, shape.heads)[..., :3].sigmoid().contiguous().requires_grad_(),
        dout=normal(n_tokens, shape.heads),
    )


def _slow_queries(shape: Shape, n_tokens: int, every: int = 64, noise: float = 0.24) -> Tensor:
    """Unit variance: drawn anew every 64 tokens, interpolated between, with a little noise of each token's."""
    knots = torch.randn(1, n_tokens // every + 2, shape.heads, shape.dim, device="cuda")
    token = torch.arange(n_tokens, device="cuda")
    at, part = token // every, (token % every / every)[None, :, None]
    q = torch.empty(1, n_tokens, shape.heads, shape.dim, device="cuda", dtype=torch.bfloat16)
    for head in range(shape.heads):  # one by one, as fp32 for all heads would set the peak of memory
        slow = (1 - part) * knots[:, at, head] + part * knots[:, at + 1, head]
        slow /= (part**2 + (1 - part) ** 2).sqrt()
        q[:, :, head] = (1 - noise**2) ** 0.5 * slow + noise * torch.randn_like(slow)
    return q


def nsa_runs(inputs: Inputs, cu_seqlens: Tensor | None = None) -> dict[str, Callable[[], object]]:
    """Forward alone without a graph for backward, and both passes."""

    def call() -> Tensor:
        return nsa_attention(
            inputs.q, inputs.k, inputs.v, inputs.gates, CONFIG, cu_seqlens=cu_seqlens, backend="triton"
        )

    def forward() -> None:
        with torch.no_grad():
            call()

    def both() -> None:
        torch.autograd.grad(call(), inputs.leaves(), inputs.dout)

    return {"forward": forward, "forward_backward": both}


def dense_runs(inputs: Inputs, backend: SDPBackend) -> dict[str, Callable[[], object]]:
    """Causal dense attention of the same queries to one branch's keys and values."""
    q, k, v = inputs.q, inputs.k.selected, inputs.v.selected
    dout = inputs.dout.transpose(1, 2)

    def call() -> Tensor:
        with sdpa_kernel(backend):
            heads_first = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)

    def forward() -> None:
        with torch.no_grad():
            call()

    def both() -> None:
        torch.autograd.grad(call(), [q, k, v], dout)

    return {"forward": forward, "forward_backward": both}


def flash_attn_runs(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """flash-attn-4 where it is installed: dense attention, and the sliding branch's window alone."""
    if "FA4" not in flash.installed():
        return {}
    from flash_attn.cute import flash_attn_func

    runs, (q, k, v) = {}, (inputs.q, inputs.k.sliding, inputs.v.sliding)
    for name, window in (("fa4", (None, None)), ("fa4 window", (CONFIG.window - 1, 0))):

        def call(window: tuple[int | None, int | None] = window) -> Tensor:
            out = flash_attn_func(q, k, v, causal=True, window_size=window)
            return out[0] if isinstance(out, tuple) else out

        def forward(call: Callable[[], Tensor] = call) -> None:
            with torch.no_grad():
                call()

        def both(call: Callable[[], Tensor] = call) -> None:
            torch.autograd.grad(call(), [q, k, v], inputs.dout)

        runs |= {f"{name} forward": forward, f"{name} forward_backward": both}
    return runs


def packed_runs(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """Four documents in one row: the first three of unlike lengths."""
    n = inputs.q.shape[1]
    borders = torch.tensor([0, n // 8, n // 2 - n // 16, n // 2, n], device="cuda", dtype=torch.int32)
    room = n_compress_slots(CONFIG, n, packed=True)
    k, v = (
        each._replace(
            compressed=F.pad(
                each.compressed.detach(), (0, 0, 0, 0, 0, room - each.compressed.shape[1])
            ).requires_grad_()
        )
        for each in (inputs.k, inputs.v)
    )
    return nsa_runs(replace(inputs, k=k, v=v), borders)


def batch_runs(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """As many tokens in four rows."""
    n = inputs.q.shape[1] // 4
    n_blocks = n_compress_slots(CONFIG, n, packed=False)

    def rows(x: Tensor, length: int) -> Tensor:
        return x.detach()[:, : 4 * length].reshape(4, length, *x.shape[2:]).requires_grad_()

    lengths = (n_blocks, n, n)
    k, v = (BranchKV(*map(rows, each, lengths)) for each in (inputs.k, inputs.v))
    q, gates, dout = (rows(x, n) for x in (inputs.q, inputs.gates, inputs.dout))
    return nsa_runs(Inputs(q=q, k=k, v=v, gates=gates, dout=dout.detach()))


def layer_runs(shape: Shape, n_tokens: int) -> dict[str, Callable[[], object]]:
    """A whole layer, projections, φ, rotation and gates included: ours, the dense control, and a peer's if there is one."""
    width = shape.heads * shape.dim
    x = torch.randn(1, n_tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    sizes = (width, shape.heads, shape.kv_heads, shape.dim)
    runs = {}
    layers = {
        "nsa": NSAAttention(*sizes, CONFIG),
        "dense": DenseAttention(*sizes),
        **peer_layers(shape, width),
    }
    for name, made in layers.items():
        layer = made.to("cuda", torch.bfloat16)

        def both(layer: torch.nn.Module = layer) -> None:
            out = layer(x)
            out = out[0] if isinstance(out, tuple) else out
            torch.autograd.grad(out.sum(), [x, *layer.parameters()], allow_unused=True)

        runs[f"{name} layer forward_backward"] = both
    return runs


def peer_layers(shape: Shape, width: int) -> dict[str, torch.nn.Module]:
    """flash-linear-attention's layer, where it is installed: blocks of l' compressed by their mean, one K and V for all."""
    try:
        import flash_attn  # noqa: F401 its window is computed by, and it is called without a look whether it is there
        from fla.layers import NativeSparseAttention
    except ImportError:
        return {}
    layer = NativeSparseAttention(
        hidden_size=width,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        block_size=CONFIG.select_block,
        block_counts=CONFIG.select_count,
        window_size=CONFIG.window,
    )
    group = shape.heads // shape.kv_heads
    return {"fla": layer} if group >= 16 and group & (group - 1) == 0 else {}  # all that its kernels take


def flex_window_runs(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """The sliding branch alone by FlexAttention, compiled; selection differs from token to token and is no block mask."""
    q, k, v = inputs.q, inputs.k.sliding, inputs.v.sliding
    n = q.shape[1]

    def in_window(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key < CONFIG.window)

    mask = create_block_mask(in_window, None, None, n, n, device="cuda")
    attend = torch.compile(flex_attention)
    dout = inputs.dout.transpose(1, 2)

    def both() -> None:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        torch.autograd.grad(attend(*heads_first, block_mask=mask, enable_gqa=True), [q, k, v], dout)

    return {"flex window forward_backward": both}


def as_graph(run: Callable[[], object]) -> Callable[[], object]:
    """The same work as one CUDA graph: what is left when launches cost nothing."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def branch_runs(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """The kernels one by one, as the whole op calls them: the bands are the compressed and the sliding branch, and of
    few blocks the selected one in backward."""
    q, gate, dout = inputs.q.detach(), inputs.gates.detach(), inputs.dout
    k, v = (BranchKV(*(x.detach() for x in each)) for each in (inputs.k, inputs.v))
    chosen = (q, k.selected, v.selected)
    both = (q, (k[0], None, k[2]), (v[0], None, v[2]))
    block, count = CONFIG.select_block, CONFIG.select_count
    (out, _, near), (lse, _, near_lse) = band.bands_forward(*both, LENGTHS)
    stats = gates.gate_backward(dout, [out] * 3, [lse] * 3, gate)[1]
    blocks = choose.select(q, k.compressed, lse, SELECTION, 0)
    dq, others = torch.empty_like(q), (out, None, near)
    *_, union = gather.selected_forward(*chosen, blocks, block, 0, None, others, gate)
    runs = {
        "bands forward": lambda: band.bands_forward(*both, LENGTHS),
        "bands dq": lambda: band.bands_dq(*both, dout, stats, LENGTHS),
        "bands dk dv": lambda: band.bands_dkv(*both, dout, stats, LENGTHS),
        "gates backward": lambda: gates.gate_backward(dout, [out, out, near], [lse, lse, near_lse], gate),
    }
    if branches.few_blocks(q, SELECTION, LENGTHS, None):
        bits = choose.select_few(q, k.compressed, lse, SELECTION, 0)
        every = (q, k, v, dout, stats, LENGTHS, None, bits)
        return runs | {
            "selection": lambda: choose.select_few(q, k.compressed, lse, SELECTION, 0),
            "selected forward": lambda: band.chosen_band_forward(*chosen, bits, LENGTHS, others, gate),
            "bands dq": lambda: band.bands_dq(*every),
            "bands dk dv": lambda: band.bands_dkv(*every),
        }
    gradient = (*chosen, dout, stats)
    return runs | {
        "selection": lambda: choose.select(q, k.compressed, lse, SELECTION, 0),
        "selected forward": lambda: gather.selected_forward(*chosen, blocks, block, 0, None, others, gate),
        "selected dq": lambda: gather.selected_dq(*gradient, dq, union, count, block, 0, add=True),
        "selected dk dv": lambda: gather.selected_dkv(*gradient, blocks, block, 0),
    }

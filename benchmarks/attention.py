"""Time Native Sparse Attention beside dense attention, by length: `python benchmarks/attention.py [--json] [--quick]`.

Every figure is a median of runs that alternate with those of its rivals, in one process on one GPU, bf16,
batch 1. "local" queries change slowly from token to token, as those of a trained model do, so neighbours
select like blocks; "random" ones select apart. `union_of_4` says how alike: how many times as many blocks
four neighbouring tokens select together as one alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa.attention import BranchKV, nsa_attention
from nsa.attention.blocks import n_compress_slots
from nsa.attention.kernels import band, branches, gates, selected, selection
from nsa.config import AttentionConfig

CONFIG = AttentionConfig()
LENGTHS = band.Lengths(
    CONFIG.compress_stride, CONFIG.compress_block, CONFIG.select_block, CONFIG.window, past=0
)
SELECTION = selection.Selection(
    stride=CONFIG.compress_stride, length=CONFIG.compress_block, block=CONFIG.select_block,
    count=CONFIG.select_count, initial=CONFIG.initial_blocks, local=CONFIG.local_blocks,
)  # fmt: skip
PEAK_FLOPS = 790e12  # bf16 matrix product of 8192 x 8192 x 8192, measured on an H200
PEAK_BYTES_S = 4.3e12  # device-to-device copy, bytes read and written, likewise


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


def interleaved_ms(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of each, taken in turns, so that a change of the clocks meets all of them."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            run()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: round(statistics.median(each), 4) for name, each in times.items()}


def nsa_runs(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """Forward alone without a graph for backward, and both passes."""

    def call() -> Tensor:
        return nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates, CONFIG, backend="triton")

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
    blocks = selection.select(q, k.compressed, lse, SELECTION, 0)
    _, _, union, _ = selected.selected_forward(*chosen, blocks, block, 0)
    dq, others = torch.empty_like(q), (out, None, near)
    runs = {
        "bands forward": lambda: band.bands_forward(*both, LENGTHS),
        "bands dq": lambda: band.bands_dq(*both, dout, stats, LENGTHS),
        "bands dk dv": lambda: band.bands_dkv(*both, dout, stats, LENGTHS),
        "gates backward": lambda: gates.gate_backward(dout, [out, out, near], [lse, lse, near_lse], gate),
    }
    if branches.few_blocks(q, SELECTION, LENGTHS, None):
        bits = selection.select_few(q, k.compressed, lse, SELECTION, 0)
        every = (q, k, v, dout, stats, LENGTHS, None, bits)
        return runs | {
            "selection": lambda: selection.select_few(q, k.compressed, lse, SELECTION, 0),
            "selected forward": lambda: band.chosen_band_forward(*chosen, bits, LENGTHS, others, gate),
            "bands dq": lambda: band.bands_dq(*every),
            "bands dk dv": lambda: band.bands_dkv(*every),
        }
    gradient = (*chosen, dout, stats)
    return runs | {
        "selection": lambda: selection.select(q, k.compressed, lse, SELECTION, 0),
        "selected forward": lambda: selected.selected_forward(*chosen, blocks, block, 0, None, others, gate),
        "selected dq": lambda: selected.selected_dq(*gradient, dq, union, count, block, 0, add=True),
        "selected dk dv": lambda: selected.selected_dkv(*gradient, blocks, block, 0),
    }


def floor_ms(shape: Shape, n_tokens: int) -> float:
    """Least time of forward and backward: the larger of matrix products and bytes, at the measured peaks.

    Backward is 2.5 times forward's products; selection scores the compressed keys once more.
    """
    tokens = torch.arange(n_tokens, dtype=torch.float64)
    compressed = ((tokens - CONFIG.compress_block + 1) // CONFIG.compress_stride + 1).clamp(min=0).sum()
    chosen = (tokens + 1).clamp(max=CONFIG.select_block * (CONFIG.select_count - 0.5)).sum()
    window = (tokens + 1).clamp(max=CONFIG.window).sum()
    flops = 4 * shape.dim * shape.heads * float(3.5 * (compressed + chosen + window) + 0.5 * compressed)
    queries, keys = n_tokens * shape.heads * shape.dim * 2, n_tokens * shape.kv_heads * shape.dim * 2
    bytes_moved = (2 + 3 + 1) * queries + 3 * 4 * keys  # q, out; q, dout, dq, and out once more; k, v, dk, dv
    return round(max(flops / PEAK_FLOPS, bytes_moved / PEAK_BYTES_S) * 1e3, 3)


def union_factor(shape: Shape, inputs: Inputs, tokens: int = 4) -> float:
    """Blocks that `tokens` neighbours select together, over those of one."""
    q, k = inputs.q.detach(), inputs.k.compressed.detach()
    lse = band.bands_forward(q, (k, None, None), (k, None, None), LENGTHS).lses[0]
    blocks = selection.select(q, k, lse, SELECTION, 0)
    together = selected.unions(blocks, tokens).count.double().mean()
    return round(float(together / (blocks >= 0).sum(-1).double().mean()), 2)


def peak_memory_gib(run: Callable[[], object]) -> float:
    """Peak of allocated memory during `run` above what was allocated before: outputs, gradients, scratch."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)


def measure(shape: Shape, n_tokens: int, repeats: int) -> dict[str, Any]:
    """All figures of one shape at one length; times in ms."""
    local = make_inputs(shape, n_tokens, local=True)
    runs = {
        f"{who} {what}": run
        for who, each in (
            ("nsa", nsa_runs(local)),
            ("cudnn", dense_runs(local, SDPBackend.CUDNN_ATTENTION)),
            ("flash", dense_runs(local, SDPBackend.FLASH_ATTENTION)),
        )
        for what, run in each.items()
    }
    if n_tokens <= 8192:  # where the launches of a call may take longer than its kernels
        for who in ("nsa", "cudnn"):
            runs[f"{who} forward_backward graph"] = as_graph(runs[f"{who} forward_backward"])
    figures: dict[str, Any] = {"ms": interleaved_ms(runs, repeats), "floor_ms": floor_ms(shape, n_tokens)}
    figures["branches_ms"] = interleaved_ms(branch_runs(local), max(3, repeats // 2))
    figures["union_of_4"] = {"local": union_factor(shape, local)}
    figures["peak_memory_gib"] = peak_memory_gib(runs["nsa forward_backward"])
    del runs, local
    random = make_inputs(shape, n_tokens, local=False)
    random_ms = interleaved_ms(nsa_runs(random), max(3, repeats // 2))
    figures["ms"] |= {f"nsa {what} random": time for what, time in random_ms.items()}
    figures["union_of_4"]["random"] = union_factor(shape, random)
    return figures


def describe_machine() -> dict[str, str]:
    """What the figures were measured with."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "python": platform.python_version(),
    }


def print_table(figures: dict[str, Any]) -> None:
    """Medians in ms, one row a run, one column a length."""
    for name in SHAPES:
        columns = {key.split()[1]: value for key, value in figures.items() if key.startswith(f"{name} ")}
        rows = list(dict.fromkeys(run for column in columns.values() for run in column["ms"]))
        print(f"\n{name:34}" + "".join(f"{length:>10}" for length in columns))
        for run in rows:
            times = (column["ms"].get(run) for column in columns.values())
            print(f"{run:34}" + "".join(f"{time:10.2f}" if time is not None else " " * 10 for time in times))


def main() -> None:
    """A table on stdout, or with --json one document; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="2k and 8k tokens only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU\nhint: run it on a machine with an H200 or A100")
    lengths = (2048, 8192) if options.quick else (2048, 8192, 16384, 32768, 65536)
    figures: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for n_tokens in lengths:
            repeats = 11 if n_tokens <= 16384 else 5
            figures[f"{name} {n_tokens}"] = measure(shape, n_tokens, repeats)
            print(f"{name} {n_tokens}: done", file=sys.stderr)
            torch.cuda.empty_cache()
    if options.json:
        print(json.dumps({"machine": describe_machine(), "figures": figures}, indent=1))
    else:
        print_table(figures)


if __name__ == "__main__":
    main()

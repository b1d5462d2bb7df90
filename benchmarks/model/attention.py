"""Time Native Sparse Attention beside dense attention, by length: `python benchmarks/model/attention.py [--json] [--quick]`.

Every figure is a median of runs that alternate with those of its rivals, in one process on one GPU, bf16, and stands with
its spread, from the fastest run to the slowest. Rows besides batch 1: four documents packed into a row of as many tokens, four rows
of a quarter each, the whole layer with its projections (beside flash-linear-attention's where that is installed), windowed attention alone by FlexAttention, and
dense and windowed attention by flash-attn-4 where that is installed. "local" queries change slowly from token to token, as those of a trained model do, so neighbours
select like blocks; "random" ones select apart. `union_of_4` says how alike: how many times as many blocks
four neighbouring tokens select together as one alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from attention_runs import (
    CONFIG,
    LENGTHS,
    SELECTION,
    SHAPES,
    Inputs,
    Shape,
    as_graph,
    batch_runs,
    branch_runs,
    dense_runs,
    flash_attn_runs,
    flex_window_runs,
    layer_runs,
    make_inputs,
    nsa_runs,
    packed_runs,
)
from torch.nn.attention import SDPBackend

from nsa.attention.kernels.bands import band
from nsa.attention.kernels.selected import choose, gather

WARM_UPS = 2
PEAK_FLOPS = 790e12  # bf16 matrix product of 8192 x 8192 x 8192, measured on an H200
PEAK_BYTES_S = 4.3e12  # device-to-device copy, bytes read and written, likewise


def interleaved_ms(
    runs: dict[str, Callable[[], object]], repeats: int, spreads: dict[str, list[float]] | None = None
) -> dict[str, float]:
    """Median time of each, taken in turns, so that a change of the clocks meets all of them.

    Given `spreads`, the fastest and the slowest of each are put in there.
    """
    for run in runs.values():
        for _ in range(WARM_UPS):
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
    if spreads is not None:
        spreads |= {name: [round(min(each), 4), round(max(each), 4)] for name, each in times.items()}
    return {name: round(statistics.median(each), 4) for name, each in times.items()}


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


def union_factor(inputs: Inputs, tokens: int = 4) -> float:
    """Blocks that `tokens` neighbours select together, over those of one."""
    q, k = inputs.q.detach(), inputs.k.compressed.detach()
    lse = band.bands_forward(q, (k, None, None), (k, None, None), LENGTHS).lses[0]
    blocks = choose.select(q, k, lse, SELECTION, 0)
    together = gather.unions(blocks, tokens).count.double().mean()
    return round(float(together / (blocks >= 0).sum(-1).double().mean()), 2)


def peak_memory_gib(run: Callable[[], object]) -> float:
    """Peak of allocated memory during `run` above what was allocated before: outputs, gradients, scratch."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)


def measure(shape: Shape, n_tokens: int, repeats: int, *, compiled: bool = True) -> dict[str, Any]:
    """All figures of one shape at one length, times in ms; those of FlexAttention, which is `compiled`, if asked for."""
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
    spreads: dict[str, list[float]] = {}
    figures: dict[str, Any] = {
        "ms": interleaved_ms(runs, repeats, spreads),
        "spread_ms": spreads,
        "floor_ms": floor_ms(shape, n_tokens),
    }
    figures["branches_ms"] = interleaved_ms(branch_runs(local), max(3, repeats // 2))
    others = {
        **{f"nsa packed {what}": run for what, run in packed_runs(local).items()},
        **{f"nsa 4 rows {what}": run for what, run in batch_runs(local).items()},
        **layer_runs(shape, n_tokens),
        **(flex_window_runs(local) if compiled else {}),
        **flash_attn_runs(local),
    }
    figures["ms"] |= interleaved_ms(others, max(3, repeats // 2), spreads)
    del others
    figures["union_of_4"] = {"local": union_factor(local)}
    figures["peak_memory_gib"] = peak_memory_gib(runs["nsa forward_backward"])
    del runs, local
    random = make_inputs(shape, n_tokens, local=False)
    random_spreads: dict[str, list[float]] = {}
    random_ms = interleaved_ms(nsa_runs(random), max(3, repeats // 2), random_spreads)
    spreads |= {f"nsa {what} random": spread for what, spread in random_spreads.items()}
    figures["ms"] |= {f"nsa {what} random": time for what, time in random_ms.items()}
    figures["union_of_4"]["random"] = union_factor(random)
    return figures


def describe_machine() -> dict[str, str]:
    """What the figures were measured with."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "driver": _driver(),
        **{name: _version(name) for name in ("flash-attn-4", "flash-linear-attention", "fla-core")},
        "python": platform.python_version(),
    }


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return "unknown"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def print_table(figures: dict[str, Any]) -> None:
    """Medians in ms, one row a run, one column a length, each with its spread; and how alike neighbours selected."""
    print("  ".join(f"{name} {version}" for name, version in describe_machine().items()))
    for name in SHAPES:
        columns = {key.split()[1]: value for key, value in figures.items() if key.startswith(f"{name} ")}
        rows = list(dict.fromkeys(run for column in columns.values() for run in column["ms"]))
        print(f"\n{name:34}" + "".join(f"{length:>24}" for length in columns))
        for run in rows:
            print(f"{run:34}" + "".join(_cell(column, run) for column in columns.values()))
        for kind in ("local", "random"):
            unions = (f"{column['union_of_4'][kind]:24.2f}" for column in columns.values())
            print(f"{f'union of 4 neighbours, {kind}':34}" + "".join(unions))


def _cell(figures: dict[str, Any], run: str) -> str:
    """A median and its spread, as in `13.31 (13.20-13.55)`."""
    if run not in figures["ms"]:
        return " " * 24
    fastest, slowest = figures["spread_ms"][run]
    return f"{figures['ms'][run]:8.2f} ({fastest:.2f}-{slowest:.2f})".rjust(24)


def main() -> None:
    """A table on stdout, or with --json one document; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="2k and 8k tokens only")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of a sequence")
    parser.add_argument(
        "--no-flex", action="store_true", help="without FlexAttention, whose compilation takes minutes"
    )
    parser.add_argument(
        "--seconds", type=float, help="after these, measure nothing more and print what there is"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU\nhint: run it on a machine with an H200 or A100")
    lengths = options.lengths or ((2048, 8192) if options.quick else (2048, 8192, 16384, 32768, 65536))
    figures: dict[str, Any] = {}
    began = time.monotonic()
    for n_tokens, (name, shape) in itertools.product(lengths, SHAPES.items()):
        if options.seconds is not None and time.monotonic() - began > options.seconds:
            break
        repeats = 11 if n_tokens <= 16384 else 5
        figures[f"{name} {n_tokens}"] = measure(shape, n_tokens, repeats, compiled=not options.no_flex)
        print(f"{name} {n_tokens}: done", file=sys.stderr)
        torch.cuda.empty_cache()
    if options.json:
        print(json.dumps({"machine": describe_machine(), "figures": figures}, indent=1))
    else:
        print_table(figures)


if __name__ == "__main__":
    main()

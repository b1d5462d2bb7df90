#!/usr/bin/env python3
"""What decoding one token costs, by context: Native Sparse Attention beside dense attention.

    python benchmarks/model/decode.py            # a minute on one GPU; --quick: 32k alone; --json

`attention` is one layer's attention to its cache in microseconds, bf16, by rows of a batch, as a CUDA graph: ours by the decode
kernels, dense by the fastest of torch's (flash and cuDNN, heads of a group as heads or as rows of queries), over keys and
values of exactly this length. `model` is the production configuration's tokens a second, one row and recorded steps, as they are and compiled; its
dense control masks a cache of fixed size, which torch answers by kernels that are slower than those above.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa.attention import BranchKV
from nsa.attention.blocks import n_compress_slots
from nsa.attention.decode_attention import decode_attention
from nsa.cache import DecodeCache, Rows
from nsa.config import AttentionConfig
from nsa.generation import RecordedDecode
from nsa.model import NSAModel
from nsa.options import load_train_config

CONTEXTS = (2048, 32768, 131072)
SHAPES = {"paper": (64, 4, 128), "small": (12, 4, 64)}
PRODUCTION = "m7c_125m_2xa100_production"
ROWS = (1, 8, 32)
MOST_TOKENS = (
    2**21
)  # of all rows: keys and values of the larger shape take 4 GB, and dense attention as much again
REPEATS, CALLS = 7, 20  # calls in a graph, so that its own launch does not count


def draw(*shape: int) -> Tensor:
    """Normal bf16 on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def nsa_call(heads: int, kv_heads: int, dim: int, context: int, n_rows: int) -> Callable[[], object]:
    """The newest of `context` tokens of every row to the cache."""
    config = AttentionConfig(backend="triton")
    rows = Rows(torch.full((n_rows,), context - 1, device="cuda"), context)
    cache = DecodeCache(config, rows)
    sizes = (n_compress_slots(config, context, packed=False), context, cache.window_ring)
    cache.keys, cache.values = (BranchKV(*(draw(n_rows, n, kv_heads, dim) for n in sizes)) for _ in range(2))
    q, gates = draw(n_rows, 1, heads, dim), draw(n_rows, 1, heads, 3).sigmoid()
    return lambda: decode_attention(q, gates, cache)


def dense_calls(
    heads: int, kv_heads: int, dim: int, context: int, n_rows: int
) -> dict[str, Callable[[], object]]:
    """Each of torch's ways."""
    q = draw(n_rows, heads, 1, dim)
    k, v = (draw(n_rows, kv_heads, context, dim) for _ in range(2))
    rows = q.view(n_rows, kv_heads, heads // kv_heads, dim)

    def call(backend: SDPBackend, *, as_rows: bool) -> Callable[[], object]:
        def run() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(rows if as_rows else q, k, v, enable_gqa=not as_rows)

        return run

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    return {
        f"{name} {'rows' if as_rows else 'heads'}": call(backend, as_rows=as_rows)
        for name, backend in backends.items()
        for as_rows in (False, True)
    }


def recorded(run: Callable[[], object]) -> Callable[[], object] | None:
    """CALLS of it as one graph; None where torch has no kernel for it."""
    stream = torch.cuda.Stream()
    try:
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                run()
    except RuntimeError as error:
        print(f"left out: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return graph.replay


def attention_us(shape: tuple[int, int, int], context: int, n_rows: int) -> dict[str, float]:
    """Median microseconds of each, taken in turns."""
    calls = {"nsa": nsa_call(*shape, context, n_rows), **dense_calls(*shape, context, n_rows)}
    graphs = {name: graph for name, call in calls.items() if (graph := recorded(call)) is not None}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPEATS):
        for name, replay in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            end.synchronize()
            times[name].append(1e3 * start.elapsed_time(end) / CALLS)
    medians = {name: round(statistics.median(each), 1) for name, each in times.items()}
    return {**medians, "dense": min(time for name, time in medians.items() if name != "nsa")}


@torch.no_grad()
def model_tokens_per_s(attention: str, context: int, *, compiled: bool = False, steps: int = 64) -> float:
    """Tokens a second behind a prompt of `context` random tokens."""
    config = load_train_config(PRODUCTION, [f"model.attention={attention}"])
    model = NSAModel(config.model, config.attention).to("cuda", torch.bfloat16)
    rows = Rows(torch.full((1,), context, device="cuda"), context + 4 * steps)
    caches = [block.attn.new_decode_cache(rows) for block in model.blocks]
    model.prefill(torch.randint(256, (1, context), device="cuda"), caches)
    step = RecordedDecode(lambda new: model.decode_step(new, caches, compiled=compiled), rows)
    token = rows.lengths[:, None] * 0
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            token.copy_(step(token).argmax(-1, keepdim=True))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return round(steps / statistics.median(seconds[1:]), 1)


def main() -> None:
    """A table on stdout, or with --json one document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="32k tokens only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU\nhint: run it on a machine with an H200 or A100")
    figures: dict[str, Any] = {}
    for context in (32768,) if options.quick else CONTEXTS:
        each: dict[str, Any] = {
            f"{name} {n} rows": attention_us(shape, context, n)
            for name, shape in SHAPES.items()
            for n in ROWS
            if n * context <= MOST_TOKENS
        }
        each["model"] = {
            f"{attention}{' compiled' if compiled else ''}": model_tokens_per_s(
                attention, context, compiled=compiled
            )
            for attention in ("nsa", "dense")
            for compiled in (False, True)
        }
        figures[str(context)] = each
        print(f"{context} tokens: done", file=sys.stderr)
        torch.cuda.empty_cache()
    if options.json:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        print(json.dumps({"machine": machine, "figures": figures}, indent=1))
        return
    for context, each in figures.items():
        for name in sorted(each.keys() - {"model"}):
            nsa, dense = each[name]["nsa"], each[name]["dense"]
            print(
                f"{context:>7} {name:14} attention: nsa {nsa:8.1f} us, dense {dense:8.1f} us ({dense / nsa:.2f} x)"
            )
        rates = ", ".join(f"{name} {rate:8.1f} tok/s" for name, rate in each["model"].items())
        print(f"{context:>7} model: {rates}")


if __name__ == "__main__":
    main()

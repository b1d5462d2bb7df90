#!/usr/bin/env python3
"""What decoding one token costs, by context: Native Sparse Attention beside dense attention.

    python benchmarks/decode.py            # a minute on one GPU; --quick: 32k alone; --json

`attention` is one layer's attention to its cache in microseconds, bf16, one row, as a CUDA graph: ours by the decode
kernels, dense by the fastest of torch's (flash and cuDNN, heads of a group as heads or as rows of queries), over keys and
values of exactly this length. `model` is the production configuration's tokens a second, one row and recorded steps; its
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
from nsa.attention.decoding import decode_attention
from nsa.cache import DecodeCache, Rows
from nsa.config import AttentionConfig
from nsa.decoding import RecordedDecode
from nsa.model import NSAModel
from nsa.options import load_train_config

CONTEXTS = (2048, 32768, 131072)
SHAPES = {"paper": (64, 4, 128), "small": (12, 4, 64)}
PRODUCTION = "m7c_125m_2xa100_production"
REPEATS, CALLS = 7, 20  # calls in a graph, so that its own launch does not count


def draw(*shape: int) -> Tensor:
    """Normal bf16 on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def nsa_call(heads: int, kv_heads: int, dim: int, context: int) -> Callable[[], object]:
    """The newest of `context` tokens to the cache."""
    config = AttentionConfig(backend="triton")
    rows = Rows(torch.full((1,), context - 1, device="cuda"), context)
    cache = DecodeCache(config, rows)
    sizes = (n_compress_slots(config, context, packed=False), context, cache.window_ring)
    cache.keys, cache.values = (BranchKV(*(draw(1, n, kv_heads, dim) for n in sizes)) for _ in range(2))
    q, gates = draw(1, 1, heads, dim), draw(1, 1, heads, 3).sigmoid()
    return lambda: decode_attention(q, gates, cache)


def dense_calls(heads: int, kv_heads: int, dim: int, context: int) -> dict[str, Callable[[], object]]:
    """Each of torch's ways."""
    q, k, v = draw(1, heads, 1, dim), draw(1, kv_heads, context, dim), draw(1, kv_heads, context, dim)
    rows = q.view(1, kv_heads, heads // kv_heads, dim)

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


def attention_us(shape: tuple[int, int, int], context: int) -> dict[str, float]:
    """Median microseconds of each, taken in turns."""
    calls = {"nsa": nsa_call(*shape, context), **dense_calls(*shape, context)}
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
def model_tokens_per_s(attention: str, context: int, steps: int = 64) -> float:
    """Tokens a second behind a prompt of `context` random tokens."""
    config = load_train_config(PRODUCTION, [f"model.attention={attention}"])
    model = NSAModel(config.model, config.attention).to("cuda", torch.bfloat16)
    rows = Rows(torch.full((1,), context, device="cuda"), context + 4 * steps)
    caches = [block.attn.new_decode_cache(rows) for block in model.blocks]
    model._prefill(torch.randint(256, (1, context), device="cuda"), caches, rows)
    step, token = RecordedDecode(lambda new: model.decode_step(new, caches), rows), rows.lengths[:, None] * 0
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
        each: dict[str, Any] = {name: attention_us(shape, context) for name, shape in SHAPES.items()}
        each["model"] = {attention: model_tokens_per_s(attention, context) for attention in ("nsa", "dense")}
        figures[str(context)] = each
        print(f"{context} tokens: done", file=sys.stderr)
        torch.cuda.empty_cache()
    if options.json:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        print(json.dumps({"machine": machine, "figures": figures}, indent=1))
        return
    for context, each in figures.items():
        for name in SHAPES:
            nsa, dense = each[name]["nsa"], each[name]["dense"]
            print(
                f"{context:>7} {name:6} attention: nsa {nsa:8.1f} us, dense {dense:8.1f} us ({dense / nsa:.2f} x)"
            )
        print(
            f"{context:>7} model: nsa {each['model']['nsa']:8.1f} tok/s, dense {each['model']['dense']:8.1f} tok/s"
        )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How alike neighbouring tokens select blocks in a model that was trained: `python benchmarks/model/trained_unions.py TEXT`.

Trains the production configuration (12 layers, 12 heads and 2 KV heads of 64) on the bytes of TEXT for some minutes on one GPU, then
prints, by layer, how many times as many blocks 4, 8 and 16 neighbouring tokens select together as one alone: what the
times of `attention.py`, whose queries are drawn, mean for a model. Beside it, the same of the untrained model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nsa import train
from nsa.attention.kernels import branches
from nsa.attention.kernels.selected import gather
from nsa.options import load_train_config
from nsa.parallel import process_group

PRODUCTION = "m7c_125m_2xa100_production"
TOGETHER = (4, 8, 16)
ROWS = 4  # of text that no step saw
OPTIONS = [
    "parallel.mode=single", "parallel.activation_checkpointing=none", "train.compile=true", "data.source=text",
    "data.documents=joined", "optimizer.lr=6e-4", "optimizer.warmup_steps=100", "train.eval_every=0",
]  # fmt: skip


@contextmanager
def every_selection(seen: Callable[[Tensor], None]) -> Iterator[None]:
    """Have `seen` called with what each layer selects, [B, Hkv, T, n]."""
    choose = branches.choose

    def watched(*arguments: Any) -> Tensor:
        blocks = choose(*arguments)
        seen(blocks)
        return blocks

    branches.choose = watched
    try:
        yield
    finally:
        branches.choose = choose


def union_factor(blocks: Tensor, tokens: int) -> float:
    """Blocks that `tokens` neighbours select together, over those of one."""
    together = gather.unions(blocks, tokens).count.double().mean()
    return float(together / (blocks >= 0).sum(-1).double().mean())


@torch.no_grad()
def measure(run: Any) -> dict[str, Any]:
    """Loss on unseen text, and the factors of each layer, means over rows."""
    factors: dict[int, list[float]] = {tokens: [] for tokens in TOGETHER}

    def seen(blocks: Tensor) -> None:
        for tokens, each in factors.items():
            each.append(union_factor(blocks, tokens))

    stream = run._open_stream(evaluation=True)
    losses = []
    with torch.compiler.set_stance("force_eager"), every_selection(seen):
        for _ in range(ROWS):
            batch = train.pack(stream.next_batch(), run.config.data).to(run.placement.device)
            losses.append(float(run._loss(batch)))
    layers = run.config.model.layers
    by_layer = {
        f"union_of_{tokens}": [round(statistics.fmean(each[layer::layers]), 2) for layer in range(layers)]
        for tokens, each in factors.items()
    }
    means = {f"{name}_mean": round(statistics.fmean(each), 2) for name, each in by_layer.items()}
    return {"loss": round(statistics.fmean(losses), 3), **means, **by_layer}


def main() -> None:
    """One JSON document on stdout; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="a file; documents end with a byte of 0")
    parser.add_argument("--seconds", type=float, default=300, help="of training, at most")
    parser.add_argument("--steps", type=int, default=3000, help="over which the learning rate falls")
    parser.add_argument("--length", type=int, default=16384, help="tokens of a sequence")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU\nhint: run it on a machine with an H200 or A100")
    chosen = [f"data.path={options.text}", f"data.seq_len={options.length}", f"train.steps={options.steps}"]
    config = load_train_config(PRODUCTION, [*OPTIONS, *chosen])
    with process_group(config.parallel) as placement:
        run = train._Run(config, placement)
        figures = {"gpu": torch.cuda.get_device_name(), "length": options.length, "untrained": measure(run)}
        until = time.monotonic() + options.seconds
        while time.monotonic() < until and run.progress.step < options.steps:
            record = run._step()
            if record.step % 100 == 0:
                print(f"step {record.step} loss {record.loss.item():.3f}", file=sys.stderr, flush=True)
        figures |= {"steps": run.progress.step, "trained": measure(run)}
        run.close()
        del run
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What being watched costs what takes microseconds: a tiny step, an evaluation, a collective, a print, a save, a load that fails.

    python benchmarks/cost/short_calls.py            # some two minutes
    python benchmarks/cost/short_calls.py --quick
    python benchmarks/cost/short_calls.py --json

Two processes do the same, one as it is and one under `nsadiag run`, and take turns, in changing order; a few starts of both,
each at another depth of the stack (as in overhead.py). A figure is the median, over all turns, of the watched one's CPU time
against the plain one's in the same round, with its quartiles. Both print into a file, unbuffered: what line buffering adds
to a stream that is buffered in blocks is a row of docs/harmless.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEPTHS = 108  # frames in a chunk of the interpreter's stack, see overhead.py
ROUNDS, STARTS = 60, 3
WARM_UP_STEPS = 1500  # past the reviews at which a probe learns what short steps afford


def things() -> dict[str, tuple[Callable[[], Any], int]]:
    """Each with the number of times that make a turn."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    tiny, x = nn.Linear(8, 8), torch.randn(4, 8)
    larger = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    # A model of its own, as those that are evaluated are in eval mode.
    evaluated = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    given, batch = torch.randn(64, 256), torch.randn(16, 64)

    def trains(
        model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor
    ) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        return step

    def evaluates() -> None:
        with torch.no_grad():
            evaluated(batch)

    def fails() -> None:
        with contextlib.suppress(OSError):
            torch.load("/nonexistent")

    def waits() -> None:
        dist.all_reduce(x, async_op=True).wait()

    tiny_step = trains(tiny, torch.optim.SGD(tiny.parameters(), 0.01), x)
    for _ in range(WARM_UP_STEPS):
        tiny_step()
    torch.save(x, "saved.pt")
    return {
        "step of 0.2 ms": (tiny_step, 300),
        "step of 3 ms": (trains(larger, torch.optim.AdamW(larger.parameters()), given), 10),
        "call in evaluation": (evaluates, 1000),
        "call": (lambda: tiny(x), 1000),
        "all_reduce of one rank": (lambda: dist.all_reduce(x), 1000),
        "the same and wait": (waits, 1000),
        "print": (lambda: print("x" * 60), 2000),
        "torch.save": (lambda: torch.save(x, "saved.pt"), 50),
        "torch.load": (lambda: torch.load("saved.pt"), 50),
        "torch.load that fails": (fails, 500),
    }


def serve(folder: Path) -> None:
    """Answers each name and depth with the CPU microseconds of one such thing."""
    known = things()

    def measured(name: str, deeper: int) -> float:
        if deeper:
            return measured(name, deeper - 1)
        thing, times = known[name]
        thing()
        used = time.thread_time()
        for _ in range(times):
            thing()
        return (time.thread_time() - used) / times * 1e6

    with (folder / "in").open() as requests, (folder / "out").open("w") as answers:
        print(json.dumps(list(known)), file=answers, flush=True)
        for line in requests:
            name, depth = json.loads(line)
            print(measured(name, depth), file=answers, flush=True)


class Worker:
    """One of the two processes."""

    def __init__(self, folder: Path, *, watched: bool) -> None:
        folder.mkdir()
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        watching = (
            [sys.executable, "-m", "nsadiag", "run", "--out", str(folder / "run"), "--"] if watched else []
        )
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [*watching, sys.executable, __file__, "--serve", str(folder)],
            cwd=folder,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT},
        )
        self._in = (folder / "in").open("w")
        self._out = (folder / "out").open()
        self.names: list[str] = json.loads(self._out.readline())

    def microseconds(self, name: str, depth: int) -> float:
        print(json.dumps([name, depth]), file=self._in, flush=True)
        return float(self._out.readline())

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self.process.wait(120)
        self._log.close()


ENVIRONMENT = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[2]),
}  # fmt: skip


def compare(rounds: int, starts: int) -> dict[str, dict[str, float]]:
    """By what is done: plain and watched microseconds, their ratio, and its quartiles."""
    found: dict[str, list[tuple[float, float]]] = {}
    for start in range(starts):
        with tempfile.TemporaryDirectory(prefix="short-calls-") as folder:
            workers = [
                Worker(Path(folder) / name, watched=name == "watched") for name in ("plain", "watched")
            ]
            for number in range(rounds):
                depth = (start * rounds + number) * DEPTHS // (rounds * starts)
                for name in workers[0].names:
                    order = workers if number % 2 else workers[::-1]
                    taken = {worker: worker.microseconds(name, depth) for worker in order}
                    found.setdefault(name, []).append((taken[workers[0]], taken[workers[1]]))
            for worker in workers:
                worker.close()
    return {name: _figures(pairs) for name, pairs in found.items()}


def _figures(pairs: list[tuple[float, float]]) -> dict[str, float]:
    low, middle, high = statistics.quantiles([watched / plain for plain, watched in pairs], n=4)
    plain, watched = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"plain_us": plain, "watched_us": watched, "times": middle, "low": low, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="one start, fewer rounds")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    from nsadiag.commands.output import machine, versions

    figures = compare(*((20, 1) if arguments.quick else (ROUNDS, STARTS)))
    if arguments.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))
        return
    print(f"{'':24}{'plain us':>10}{'watched':>10}{'times':>8}  quartiles")
    for name, of in figures.items():
        print(
            f"{name:24}{of['plain_us']:10.1f}{of['watched_us']:10.1f}{of['times']:8.2f}  {of['low']:.2f} … {of['high']:.2f}"
        )


if __name__ == "__main__":
    main()

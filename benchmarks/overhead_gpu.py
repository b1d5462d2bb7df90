#!/usr/bin/env python3
"""What being watched costs a training job on a GPU: nsa's production step, eager and compiled.

    python benchmarks/overhead_gpu.py            # ten minutes on one GPU
    python benchmarks/overhead_gpu.py --quick
    python benchmarks/overhead_gpu.py --json

Three processes train nsa's model (12 layers, 2,048 tokens, bf16, DDP, activation checkpointing, fused AdamW): one as
it is, one under `nsadiag run --probes light`, one under `--probes full`. They take turns of five steps, in changing
order, and the device is waited for at the end of each step. A figure is the median of all steps against the plain
one's, and in place of quartiles the same of the first and of the third quartile. The agent runs beside them.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODES = ("none", "light", "full")
TURN_STEPS = 5
WARM_UP_STEPS = 70  # past the reviews at which a probe learns what short steps afford
PRODUCTION = "m7c_125m_2xa100_production"


class ProductionJob:
    """nsa's trainer with one of its configurations, one step at a time."""

    def __init__(self, run: Any, cuda: Any) -> None:
        self.step, self._cuda = run._step, cuda

    def each(self, steps: int) -> list[float]:
        """Milliseconds of each step, the device's part included."""
        told = []
        for _ in range(steps):
            started = time.perf_counter()
            self.step()
            if self._cuda is not None:
                self._cuda.synchronize()
            told.append((time.perf_counter() - started) * 1e3)
        return told


@contextlib.contextmanager
def production(model: str, compiled: str) -> Iterator[ProductionJob]:
    """`compiled` is true or false, as the trainer's option has it."""
    import torch

    from nsa import train
    from nsa.options import load_train_config
    from nsa.parallel import process_group

    config = load_train_config(model, [f"train.compile={compiled}", "train.steps=1000000"])
    with process_group(config.parallel) as placement:
        run = train._Run(config, placement)
        yield ProductionJob(run, torch.cuda if torch.cuda.is_available() else None)
        run.close()
        del run


def serve(folder: Path, model: str, compiled: str) -> None:
    """Answers each number of steps that comes in with the milliseconds that they took."""
    with production(model, compiled) as job:
        # What is compiled when it first runs: in all processes at once.
        job.each(3)
        with (folder / "in").open() as requests, (folder / "out").open("w") as answers:
            for line in requests:
                answers.write(json.dumps(job.each(int(line))) + "\n")
                answers.flush()


class Worker:
    """One of the three processes."""

    def __init__(self, mode: str, folder: Path, job: tuple[str, ...]) -> None:
        folder.mkdir()
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        line = [sys.executable, __file__, "--worker", str(folder), *job]
        # A worker that waits for its turn is blocked on a pipe: that would be called hung, and rightly.
        options = ["--probes", mode, "--stall-after", "36000", "--out", str(folder / "run")]
        watched = [sys.executable, "-m", "nsadiag", "run", *options, "--", *line]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                line if mode == "none" else watched,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._folder = folder

    def warm_up(self) -> None:
        """The learning steps, undisturbed by the other processes: how long a step takes is what is learnt."""
        self._in = (self._folder / "in").open("w")
        self._out = (self._folder / "out").open()
        self.each(WARM_UP_STEPS)

    def each(self, steps: int) -> list[float]:
        self._in.write(f"{steps}\n")
        self._in.flush()
        told: list[float] = json.loads(self._out.readline())
        return told

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(60)


def turns(job: tuple[str, ...], rounds: int) -> dict[str, list[float]]:
    """By mode, milliseconds of each step, of all turns."""
    told: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        workers = {mode: Worker(mode, Path(folder) / mode, job) for mode in MODES}
        for found in workers.values():
            found.warm_up()
        for number in range(rounds):
            for mode in MODES[number % 3 :] + MODES[: number % 3]:
                # The first step of a turn meets cold caches.
                told[mode] += workers[mode].each(TURN_STEPS)[1:]
        for found in workers.values():
            found.close()
    return told


def measure(model: str, rounds: int) -> dict[str, Any]:
    """A production step, eager and compiled."""
    from nsa.options import load_train_config

    data = load_train_config(model).data
    figures: dict[str, Any] = {"rounds": rounds}
    for name, compiled in (("eager", "false"), ("compiled", "true")):
        steps_ms = turns((model, compiled), rounds)
        plain = steps_ms["none"]
        figures[f"gpu_step_ms_{name}"] = statistics.median(plain)
        figures[f"gpu_step_ms_{name}_quartiles"] = quartiles(plain)
        figures[f"gpu_tokens_per_s_{name}"] = data.batch_size * data.seq_len / statistics.median(plain) * 1e3
        for mode in MODES[1:]:
            # Of the same quantile: on a machine whose speed wavers, the fast steps are the steady ones.
            low, middle, high = (
                (a / b - 1) * 100
                for a, b in zip(
                    statistics.quantiles(steps_ms[mode], n=4), statistics.quantiles(plain, n=4), strict=True
                )
            )
            figures[f"gpu_{mode}_pct_{name}"] = middle
            figures[f"gpu_{mode}_pct_{name}_quartiles"] = (low, high)
    return figures


def quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third."""
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--model", default=PRODUCTION, help="a configuration of nsa")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        folder, model, compiled = arguments.worker
        serve(Path(folder), model, compiled)
        return
    from nsadiag.commands.output import machine, versions

    figures = measure(arguments.model, 40 if arguments.quick else 120)
    if arguments.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))
        return
    for name, value in figures.items():
        shown = " … ".join(f"{v:.2f}" for v in value) if isinstance(value, tuple) else f"{value:.2f}"
        print(f"{name:36}{shown:>16}")


if __name__ == "__main__":
    main()

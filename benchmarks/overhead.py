#!/usr/bin/env python3
"""What being watched costs a job: one event, a training step with `light` and `full` probes, memory.

    python benchmarks/overhead.py            # about five minutes
    python benchmarks/overhead.py --quick    # about one
    python benchmarks/overhead.py --json
    python benchmarks/overhead.py --gpu      # on one GPU: the configuration that nsa calls production; ten minutes

Three processes train the same 12-layer model of 200 parameters on the same data: one as it is, one under
`nsadiag run --probes light`, one under `--probes full`. They take turns of a third of a second, in changing
order, so that a disturbance of the machine hits all three; a figure is the median over all turns of one's time
against the plain one's of the same round. The agent runs beside them, as it does in use.

With --gpu the model is nsa's (12 layers, 2,048 tokens, bf16, DDP, activation checkpointing, fused AdamW), eager and
compiled; a turn is five steps, at the end of each of which the device is waited for. A figure is the median of all
steps against the plain one's, and in place of quartiles the same of the first and of the third quartile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

MODES = ("none", "light", "full")
TURN_S = 0.3
GPU_TURN_STEPS = 5
WARM_UP_STEPS = 70  # past the reviews at which a probe learns what short steps afford
PRODUCTION = "m7c_125m_2xa100_production"


# -- the job -----------------------------------------------------------------------------------------


class Job(Protocol):
    """A training loop, one step at a time."""

    def step(self) -> None:
        """One more."""

    def settle(self) -> None:
        """Returns when the device has done what it was told."""


def seconds(job: Job, steps: int) -> tuple[float, float]:
    """On the clock, and of this thread's CPU: what others take from a crowded machine is not in the second."""
    started, used = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        job.step()
    job.settle()
    return time.perf_counter() - started, time.thread_time() - used


def each(job: Job, steps: int) -> list[float]:
    """Milliseconds of each step, the device's part included."""
    told = []
    for _ in range(steps):
        started = time.perf_counter()
        job.step()
        job.settle()
        told.append((time.perf_counter() - started) * 1e3)
    return told


def build(width: int) -> Any:
    """12 blocks of 16 parameter tensors, and 8 around them."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            y = self.ln_1(x)
            x = x + self.o(nn.functional.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y)))
            return x + self.down(nn.functional.gelu(self.up(self.ln_2(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = nn.Embedding(256, width), nn.Embedding(4096, width)
            self.inward = nn.Linear(width, width)
            self.blocks = nn.ModuleList(Block() for _ in range(12))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

        def forward(self, tokens: Any) -> Any:
            import torch

            x = self.inward(self.token(tokens) + self.position(torch.arange(tokens.shape[1])))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


class SmallJob:
    """One that a CPU core can train."""

    def __init__(self, width: int, length: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.torch = torch
        self.model = build(width)
        assert len(list(self.model.parameters())) == 200
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(256, (1, length))

    def step(self) -> None:
        self.optimizer.zero_grad()
        logits = self.model(self.tokens)
        self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten()).backward()
        self.optimizer.step()

    def settle(self) -> None:
        pass


class ProductionJob:
    """nsa's trainer with one of its configurations."""

    def __init__(self, run: Any, cuda: Any) -> None:
        self.step, self._cuda = run._step, cuda

    def settle(self) -> None:
        if self._cuda is not None:
            self._cuda.synchronize()


@contextlib.contextmanager
def the_job(kind: str, *details: str) -> Iterator[Job]:
    """`small WIDTH LENGTH`, or `production CONFIGURATION true|false` (compiled)."""
    if kind == "small":
        width, length = map(int, details)
        yield SmallJob(width, length)
        return
    import torch

    from nsa import train
    from nsa.options import load_train_config
    from nsa.parallel import process_group

    name, compiled = details
    config = load_train_config(name, [f"train.compile={compiled}", "train.steps=1000000"])
    with process_group(config.parallel) as placement:
        run = train._Run(config, placement)
        yield ProductionJob(run, torch.cuda if torch.cuda.is_available() else None)
        run.close()
        del run


ASKED: dict[str, Any] = {"seconds": seconds, "each": each}


def worker(folder: Path, *job: str) -> None:
    """Answers each number of steps that comes in with the seconds that they took."""
    with the_job(*job) as made:
        # What is compiled when it first runs: in all processes at once.
        seconds(made, 3)
        with (folder / "in").open() as requests, (folder / "out").open("w") as answers:
            for line in requests:
                what, _, steps = line.strip().partition(" ")
                told = peak_mib() if what == "peak" else ASKED[what](made, int(steps))
                answers.write(json.dumps(told) + "\n")
                answers.flush()


def peak_mib() -> float:
    """Of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fitting_length(width: int, target_s: float) -> int:
    """The sequence length at which a step takes about `target_s`."""
    length = 4
    while seconds(SmallJob(width, length), 5)[1] / 5 < target_s and length < 4096:
        length = int(length * 1.3) + 1
    return length


# -- taking turns ------------------------------------------------------------------------------------


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
        self.seconds(WARM_UP_STEPS)
        self.peak_mib = float(self._ask("peak"))

    def seconds(self, steps: int) -> tuple[float, float]:
        clock, cpu = json.loads(self._ask(f"seconds {steps}"))
        return clock, cpu

    def each(self, steps: int) -> list[float]:
        told: list[float] = json.loads(self._ask(f"each {steps}"))
        return told

    def _ask(self, what: str) -> str:
        self._in.write(f"{what}\n")
        self._in.flush()
        return self._out.readline()

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(60)


def compare(job: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Per cent by which a step is longer with light and with full probes, and MiB that a rank is larger."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        workers = {mode: Worker(mode, Path(folder) / mode, job) for mode in MODES}
        for found in workers.values():
            found.warm_up()
        steps = max(1, round(TURN_S / (workers["none"].seconds(3)[0] / 3)))
        times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
        for number in range(rounds):
            order = MODES[number % 3 :] + MODES[: number % 3]
            for mode in order:
                times[mode].append(workers[mode].seconds(steps))
        peaks = {mode: found.peak_mib for mode, found in workers.items()}
        for found in workers.values():
            found.close()
    return {
        "step_ms": statistics.median(clock for clock, _ in times["none"]) / steps * 1e3,
        **{mode: percent(times[mode], times["none"], 0) for mode in MODES[1:]},
        **{f"{mode}_cpu": percent(times[mode], times["none"], 1) for mode in MODES[1:]},
        "rank_mib": max(peaks["light"], peaks["full"]) - peaks["none"],
    }


Times = list[tuple[float, float]]


def percent(watched: Times, plain: Times, which: int) -> tuple[float, float, float]:
    """Median, and the quartiles around it, of the clock (0) or of CPU time (1)."""
    ratios = [(a[which] / b[which] - 1) * 100 for a, b in zip(watched, plain, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


# -- one event ---------------------------------------------------------------------------------------


def event_us(count: int = 200_000) -> tuple[float, float]:
    """Microseconds of one event, name looked up, at the 50th and the 99th percentile; the clock's own time is taken off."""
    from nsadiag.evidence.blackbox import BlackBox, Kind, Names, Phase

    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        names = Names(Path(folder) / "names.jsonl")
        box = BlackBox(Path(folder) / "blackbox.bin", names, rank=0, world_size=1)
        now, emit, kind, phase = time.perf_counter_ns, box.emit, Kind.MODULE, Phase.BEGIN
        empty, full = [], []
        for _ in range(count):
            a = now()
            b = now()
            emit(kind, phase, names("blocks.3.mlp.fc2"), 7)
            c = now()
            empty.append(b - a)
            full.append(c - b)
    clock = statistics.median(empty)
    full.sort()
    return (full[count // 2] - clock) / 1e3, (full[count * 99 // 100] - clock) / 1e3


def by_name(found: dict[str, Any], step: str) -> dict[str, Any]:
    """The figures of one length of step."""
    named: dict[str, Any] = {}
    for mode in MODES[1:]:
        named[f"{mode}_pct_{step}"] = found[mode][0]
        named[f"{mode}_pct_{step}_quartiles"] = found[mode][1:]
        named[f"{mode}_cpu_pct_{step}"] = found[f"{mode}_cpu"][0]
    return named


def on_cpu(rounds: int) -> dict[str, Any]:
    """One event, and a short and a long step."""
    p50, p99 = event_us()
    short, long = (
        compare(("small", str(width), str(fitting_length(width, target_s))), rounds)
        for width, target_s in ((32, 0.005), (256, 0.100))
    )
    return {
        "event_us_p50": p50,
        "event_us_p99": p99,
        **by_name(short, "5ms"),
        **by_name(long, "100ms"),
        "rank_mib": max(short["rank_mib"], long["rank_mib"]),
        "step_ms_short": short["step_ms"],
        "step_ms_long": long["step_ms"],
        "rounds": rounds,
    }


def on_gpu(model: str, rounds: int) -> dict[str, Any]:
    """A production step, eager and compiled."""
    from nsa.options import load_train_config

    data = load_train_config(model).data
    figures: dict[str, Any] = {"rounds": rounds}
    for name, compiled in (("eager", "false"), ("compiled", "true")):
        steps_ms = turns(("production", model, compiled), rounds)
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
                told[mode] += workers[mode].each(GPU_TURN_STEPS)[1:]
        for found in workers.values():
            found.close()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--gpu", action="store_true", help="a production step on one GPU instead")
    parser.add_argument("--model", default=PRODUCTION, help="with --gpu: a configuration of nsa")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        folder, *job = arguments.worker
        worker(Path(folder), *job)
        return
    from nsadiag.commands.output import machine, versions

    if arguments.gpu:
        figures = on_gpu(arguments.model, 40 if arguments.quick else 120)
    else:
        figures = on_cpu(30 if arguments.quick else 150)
    if arguments.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))
        return
    for name, value in figures.items():
        shown = " … ".join(f"{v:.2f}" for v in value) if isinstance(value, tuple) else f"{value:.2f}"
        print(f"{name:36}{shown:>16}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What being watched costs a job: one event, a training step with `light`, `invariants` and `full` probes, memory.

    python benchmarks/cost/overhead.py            # about twelve minutes
    python benchmarks/cost/overhead.py --quick    # about two
    python benchmarks/cost/overhead.py --json
    python benchmarks/cost/overhead.py --jobs 14          # where cores are idle: as many starts beside each other
    python benchmarks/cost/overhead.py --without modules gradients   # and `light` without the one, and without the other
    python benchmarks/cost/overhead.py --modes light light,paths --beside light --short-ms 10 --warm-up 600   # what `paths` adds
    python benchmarks/cost/overhead.py --modes armed thread   # in place of light, invariants and full: what `nsadiag arm` costs

`thread` is the job as it is with a thread that sleeps: the C library locks and counts without atomic instructions in a process
that never had a second one, and ranks in a process group have several.

Four processes train the same 12-layer model of 200 parameters on the same data: one as it is, one with `light`
probes, one with `light,invariants`, one with `full`. They are forked from one process, because two that are started
apart lie differently in memory and differ by some per cent for as long as they live; the control is a fifth, as it is
like the first. They take turns of a few steps, in changing order and on one CPU, so that a disturbance of the machine
hits all of them. Each start is at another depth of the stack, for which see DEPTHS. A figure is the median, over all
turns, of one's time against the plain one's of the same round. Times are those of the training thread's CPU: a
neighbour on the machine is not in them. What the agent beside the job costs is not either: it glances from outside at
most 5 % of one CPU in the first minute, and then ever less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

MODES = ("light", "invariants", "full")
AGAIN = "@again"  # of a mode that stands beside itself: the control
WITHOUT = "light-"  # a mode: what comes behind it are the probes that it lacks, joined by "+"
TURN_S = 0.05
# The interpreter keeps its frames in chunks of 16 KiB, and takes and returns one with every call that crosses the border
# between two: where in the model that is depends on how deep the training loop lies, and a frame of ours moves it. Over 16
# depths steps of equal work differed by up to 3 %. So the starts lie at as many depths, over the length of a chunk.
DEPTHS = 108
WARM_UP_STEPS = 20  # past the reviews at which a probe learns what short steps afford


# -- the job -----------------------------------------------------------------------------------------


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


class Job:
    """The training loop, one step at a time."""

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

    def seconds(self, steps: int, deeper: int = 0) -> float:
        """Of this thread's CPU: backward runs on it, too; `deeper` frames below the caller."""
        if deeper:
            return self.seconds(steps, deeper - 1)
        used = time.thread_time()
        for _ in range(steps):
            self.step()
        return time.thread_time() - used


def nursery(
    folder: Path, width: int, length: int, cpu: int, depth: int, warm_up: int, modes: list[str]
) -> None:
    """Builds the job once, and forks a process for each mode, which then answers what comes in through its pipe."""
    # On different CPUs they would find different caches, and differ by some per cent more from turn to turn.
    os.sched_setaffinity(0, {cpu})
    job = Job(width, length)
    # Loaded by all: a process that loads it after the fork has more pages of its own, which costs it a per cent.
    import_module("nsadiag.worker.probes")
    job.seconds(3)
    children = []
    for mode in modes:
        pid = os.fork()
        if not pid:
            serve(job, mode, folder / mode, depth, warm_up)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def serve(job: Job, mode: str, folder: Path, depth: int, warm_up: int) -> None:
    """Answers each number of steps with the CPU seconds that they took, in so many more frames."""
    mode = mode.removesuffix(AGAIN)
    if mode == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif mode not in ("none", "control"):
        from nsadiag.worker import probes, startup

        if mode.startswith(WITHOUT):
            for probe in mode.removeprefix(WITHOUT).split("+"):
                del probes.PROBES[probe]
            mode = "light"
        probes_of_mode = "light,invariants" if mode == "invariants" else mode
        os.environ.update(NSADIAG_RUN_DIR=str(folder / "run"), NSADIAG_PROBES=probes_of_mode)
        # The first of two ranks: a rank alone has nobody to be compared with, and is looked at less.
        assert startup.attach_to_warm_process(0, 2) is not None
    job.seconds(warm_up, depth)
    with (folder / "in").open() as requests, (folder / "out").open("w") as answers:
        answers.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}\n")
        answers.flush()
        for line in requests:
            answers.write(f"{job.seconds(int(line), depth)}\n")
            answers.flush()


def fitting_length(width: int, target_s: float) -> int:
    """The sequence length at which a step takes about `target_s`."""
    length = 4
    while Job(width, length).seconds(5) / 5 < target_s and length < 4096:
        length = int(length * 1.3) + 1
    return length


# -- taking turns ------------------------------------------------------------------------------------


class Worker:
    """The other end of one mode's pipes."""

    def __init__(self, folder: Path) -> None:
        self._in = (folder / "in").open("w")
        self._out = (folder / "out").open()
        self.peak_mib = float(self._out.readline())

    def seconds(self, steps: int) -> float:
        self._in.write(f"{steps}\n")
        self._in.flush()
        return float(self._out.readline())

    def close(self) -> None:
        self._in.close()
        self._out.close()


def compare(
    target_s: float,
    width: int,
    rounds: int,
    starts: int,
    jobs: int,
    warm_up: int,
    modes: list[str],
    beside: str,
) -> dict[str, Any]:
    """Per cent by which a step is longer in each mode than in `beside`, and MiB that a rank is larger."""
    length = fitting_length(width, target_s)
    cpus = sorted(os.sched_getaffinity(0), reverse=True)
    free = queue.SimpleQueue[int]()
    for cpu in cpus[:jobs]:
        free.put(cpu)

    def on_a_free_cpu(number: int) -> Start:
        cpu = free.get()
        try:
            return one_start(width, length, rounds // starts, cpu, number * DEPTHS // starts, warm_up, modes)
        finally:
            free.put(cpu)

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(on_a_free_cpu, range(starts)))
    return {
        "step_ms": statistics.median(s / start.steps for start in found for s in start.seconds["none"]) * 1e3,
        **{
            mode: percent(
                [start.seconds[mode] for start in found], [start.seconds[beside] for start in found]
            )
            for mode in modes
            if mode != beside
        },
        "rank_mib": statistics.median(
            max(start.peaks[mode] for mode in modes) - start.peaks["none"] for start in found
        ),
    }


@dataclass(frozen=True)
class Start:
    """What one set of processes, forked from one, gave."""

    steps: int  # a turn
    seconds: dict[str, list[float]]  # of each turn, by mode
    peaks: dict[str, float]  # MiB, by mode


def one_start(
    width: int, length: int, rounds: int, cpu: int, depth: int, warm_up: int, modes: list[str]
) -> Start:
    """Forks a process for each mode, and has them take turns, so many frames deeper than elsewhere."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        for mode in modes:
            (Path(folder) / mode).mkdir()
            for name in ("in", "out"):
                os.mkfifo(Path(folder) / mode / name)
        process = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--nursery",
                folder,
                str(width),
                str(length),
                str(cpu),
                str(depth),
                str(warm_up),
                *modes,
            ],
            # With a GPU in sight autograd has threads for it, which no fork survives.
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        workers = {mode: Worker(Path(folder) / mode) for mode in modes}
        steps = max(1, round(TURN_S / (workers["none"].seconds(3) / 3)))
        times: dict[str, list[float]] = {mode: [] for mode in modes}
        for number in range(rounds):
            turn = number % len(modes)
            for mode in modes[turn:] + modes[:turn]:
                times[mode].append(workers[mode].seconds(steps))
        for worker in workers.values():
            worker.close()
        process.wait(60)
    return Start(steps, times, {mode: worker.peak_mib for mode, worker in workers.items()})


class Percent(NamedTuple):
    """By how much longer, over all rounds."""

    median: float
    low: float  # quartiles
    high: float
    # Standard error, by how much the starts' medians differ: processes lie differently in memory each time.
    error: float


def percent(watched: list[list[float]], plain: list[list[float]]) -> Percent:
    """Of each start the seconds of its turns."""
    by_start = [
        [(a / b - 1) * 100 for a, b in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(watched, plain, strict=True)
    ]
    low, middle, high = statistics.quantiles([ratio for start in by_start for ratio in start], n=4)
    medians = [statistics.median(start) for start in by_start]
    return Percent(middle, low, high, statistics.stdev(medians) / math.sqrt(len(medians)))


# -- one event ---------------------------------------------------------------------------------------


def event_us(count: int = 200_000) -> tuple[float, float]:
    """Microseconds of one event, name looked up, at the 50th and the 99th percentile; the clock's own time is taken off."""
    from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        box = BlackBox(Path(folder) / "blackbox.bin", rank=0, world_size=1)
        names = box.names
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
    for mode, figures in found.items():
        if isinstance(figures, Percent):
            named[f"{mode}_pct_{step}"] = figures.median
            named[f"{mode}_pct_{step}_quartiles"] = (figures.low, figures.high)
            named[f"{mode}_pct_{step}_error"] = figures.error
    return named


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--jobs", type=int, default=1, help="starts beside each other, each on a CPU of its own"
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="PROBE[+PROBE]", help="light without these, as well"
    )
    parser.add_argument("--modes", nargs="+", default=MODES, help="probes to compare")
    parser.add_argument("--beside", default="none", help="the mode with which all others are compared")
    parser.add_argument("--short-ms", type=int, default=5, help="the length of the short step")
    parser.add_argument("--rounds", type=int, help="of the short step, over all starts; of the long one half")
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP_STEPS, help="short steps that are not measured"
    )
    parser.add_argument("--nursery", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.nursery:
        folder, *numbers = arguments.nursery[:6]
        nursery(Path(folder), *map(int, numbers), modes=arguments.nursery[6:])
        return
    from nsadiag.commands.output import machine, versions

    control = "control" if arguments.beside == "none" else arguments.beside + AGAIN
    modes = ["none", *arguments.modes, control, *(WITHOUT + probe for probe in arguments.without)]
    rounds, starts = (240, 3) if arguments.quick else (1600, 8)
    rounds, starts = arguments.rounds or rounds, max(starts, arguments.jobs)
    p50, p99 = event_us()
    beside, short_ms = arguments.beside, arguments.short_ms
    jobs, warm_up = arguments.jobs, arguments.warm_up
    short = compare(short_ms / 1e3, 32, rounds, starts, jobs, warm_up, modes, beside)
    long = compare(0.100, 256, rounds // 2, starts, jobs, WARM_UP_STEPS, modes, beside)
    figures = {
        "event_us_p50": p50,
        "event_us_p99": p99,
        **by_name(short, f"{short_ms}ms"),
        **by_name(long, "100ms"),
        "rank_mib": max(short["rank_mib"], long["rank_mib"]),
        "step_ms_short": short["step_ms"],
        "step_ms_long": long["step_ms"],
        "rounds": rounds,
    }
    if arguments.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))
        return
    for name, value in figures.items():
        shown = " … ".join(f"{v:.2f}" for v in value) if isinstance(value, tuple) else f"{value:.2f}"
        print(f"{name:40}{shown:>16}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What being watched costs a job: one event, a training step with `light` and `full` probes, memory.

    python benchmarks/overhead.py            # about twelve minutes
    python benchmarks/overhead.py --quick    # about two
    python benchmarks/overhead.py --json

Three processes train the same 12-layer model of 200 parameters on the same data: one as it is, one with `light`
probes, one with `full`. They are forked from one process, because two that are started apart lie differently in
memory and differ by some per cent for as long as they live; the control is a fourth, as it is like the first. They
take turns of a few steps, in changing order and on one CPU, so that a disturbance of the machine hits all of them. A figure
is the median, over all turns, of one's time against the plain one's of the same round. Times are those of the
training thread's CPU: a neighbour on the machine is not in them. What the agent beside the job costs is not either:
it glances from outside at most 5 % of one CPU in the first minute, and then ever less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

MODES = ("none", "light", "full", "control")
TURN_S = 0.05
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

    def seconds(self, steps: int) -> float:
        """Of this thread's CPU: backward runs on it, too."""
        used = time.thread_time()
        for _ in range(steps):
            self.step()
        return time.thread_time() - used


def nursery(folder: Path, width: int, length: int) -> None:
    """Builds the job once, and forks a process for each mode, which then answers what comes in through its pipe."""
    job = Job(width, length)
    # Loaded by all: a process that loads it after the fork has more pages of its own, which costs it a per cent.
    import_module("nsadiag.worker.probes")
    job.seconds(3)
    children = []
    for mode in MODES:
        pid = os.fork()
        if not pid:
            serve(job, mode, folder / mode)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def serve(job: Job, mode: str, folder: Path) -> None:
    """Answers each number of steps with the CPU seconds that they took."""
    # On different CPUs they would find different caches, and differ by some per cent more from turn to turn.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if mode in ("light", "full"):
        from nsadiag.worker import runtime

        os.environ.update(NSADIAG_RUN_DIR=str(folder / "run"), NSADIAG_PROBES=mode)
        assert runtime.attach_to_warm_process(0, 1) is not None
    job.seconds(WARM_UP_STEPS)
    with (folder / "in").open() as requests, (folder / "out").open("w") as answers:
        answers.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}\n")
        answers.flush()
        for line in requests:
            answers.write(f"{job.seconds(int(line))}\n")
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


def compare(target_s: float, width: int, rounds: int, starts: int) -> dict[str, Any]:
    """Per cent by which a step is longer in each mode, and MiB that a rank is larger."""
    length = fitting_length(width, target_s)
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    larger, step_s = [], []
    for _ in range(starts):
        steps, found, peaks = one_start(width, length, rounds // starts)
        for mode in MODES:
            times[mode] += found[mode]
        larger.append(max(peaks["light"], peaks["full"]) - peaks["none"])
        step_s += [seconds / steps for seconds in found["none"]]
    return {
        "step_ms": statistics.median(step_s) * 1e3,
        **{mode: percent(times[mode], times["none"]) for mode in MODES[1:]},
        "rank_mib": statistics.median(larger),
    }


def one_start(width: int, length: int, rounds: int) -> tuple[int, dict[str, list[float]], dict[str, float]]:
    """Steps a turn; seconds of each turn, by mode; peak MiB, by mode."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        for mode in MODES:
            (Path(folder) / mode).mkdir()
            for name in ("in", "out"):
                os.mkfifo(Path(folder) / mode / name)
        process = subprocess.Popen(
            [sys.executable, __file__, "--nursery", folder, str(width), str(length)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        workers = {mode: Worker(Path(folder) / mode) for mode in MODES}
        steps = max(1, round(TURN_S / (workers["none"].seconds(3) / 3)))
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(rounds):
            turn = number % len(MODES)
            for mode in MODES[turn:] + MODES[:turn]:
                times[mode].append(workers[mode].seconds(steps))
        for worker in workers.values():
            worker.close()
        process.wait(60)
    return steps, times, {mode: worker.peak_mib for mode, worker in workers.items()}


def percent(watched: list[float], plain: list[float]) -> tuple[float, float, float]:
    """Median, and the quartiles around it."""
    ratios = [(a / b - 1) * 100 for a, b in zip(watched, plain, strict=True)]
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
    return named


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--nursery", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.nursery:
        folder, width, length = arguments.nursery
        nursery(Path(folder), int(width), int(length))
        return
    from nsadiag.commands.output import machine, versions

    rounds, starts = (240, 3) if arguments.quick else (1600, 8)
    p50, p99 = event_us()
    short, long = compare(0.005, 32, rounds, starts), compare(0.100, 256, rounds // 2, starts)
    figures = {
        "event_us_p50": p50,
        "event_us_p99": p99,
        **by_name(short, "5ms"),
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
        print(f"{name:28}{shown:>16}")


if __name__ == "__main__":
    main()

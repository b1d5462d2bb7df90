#!/usr/bin/env python3
"""What being watched costs a job: one event, a training step with `light` and `full` probes, memory.

    python benchmarks/overhead.py            # about five minutes
    python benchmarks/overhead.py --quick    # about one
    python benchmarks/overhead.py --json

Three processes train the same 12-layer model of 200 parameters on the same data: one as it is, one under
`nsadiag run --probes light`, one under `--probes full`. They take turns of a third of a second, in changing
order, so that a disturbance of the machine hits all three; a figure is the median over all turns of one's time
against the plain one's of the same round. Two equal processes differ by a per cent or two for as long as they
live, so the three are started anew several times. The agent runs beside them, as it does in use.
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
from pathlib import Path
from typing import Any

MODES = ("none", "light", "full")
TURN_S = 0.3
Times = list[tuple[float, float]]  # on the clock, and of the CPU
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

    def seconds(self, steps: int) -> tuple[float, float]:
        """On the clock, and of this thread's CPU: what others take from a crowded machine is not in the second."""
        started, used = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            self.step()
        return time.perf_counter() - started, time.thread_time() - used


def worker(folder: Path, width: int, length: int) -> None:
    """Answers each number of steps that comes in with the seconds that they took."""
    job = Job(width, length)
    job.seconds(WARM_UP_STEPS)
    with (folder / "in").open() as requests, (folder / "out").open("w") as answers:
        answers.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}\n")
        answers.flush()
        for line in requests:
            answers.write(json.dumps(job.seconds(int(line))) + "\n")
            answers.flush()


def fitting_length(width: int, target_s: float) -> int:
    """The sequence length at which a step takes about `target_s`."""
    length = 4
    while Job(width, length).seconds(5)[1] / 5 < target_s and length < 4096:
        length = int(length * 1.3) + 1
    return length


# -- taking turns ------------------------------------------------------------------------------------


class Worker:
    """One of the three processes."""

    def __init__(self, mode: str, folder: Path, width: int, length: int) -> None:
        folder.mkdir()
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        job = [sys.executable, __file__, "--worker", str(folder), str(width), str(length)]
        # A worker that waits for its turn is blocked on a pipe: that would be called hung, and rightly.
        options = ["--probes", mode, "--stall-after", "3600", "--out", str(folder / "run")]
        watched = [sys.executable, "-m", "nsadiag", "run", *options, "--", *job]
        command = job if mode == "none" else watched
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._in = (folder / "in").open("w")
        self._out = (folder / "out").open()
        self.peak_mib = float(self._out.readline())

    def seconds(self, steps: int) -> tuple[float, float]:
        self._in.write(f"{steps}\n")
        self._in.flush()
        clock, cpu = json.loads(self._out.readline())
        return clock, cpu

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(60)


def compare(target_s: float, width: int, rounds: int, starts: int) -> dict[str, Any]:
    """Per cent by which a step is longer with light and with full probes, and MiB that a rank is larger."""
    length = fitting_length(width, target_s)
    times: dict[str, Times] = {mode: [] for mode in MODES}
    larger, step_s = [], []
    for _ in range(starts):
        steps, found, peaks = one_start(width, length, rounds // starts)
        for mode in MODES:
            times[mode] += found[mode]
        larger.append(max(peaks["light"], peaks["full"]) - peaks["none"])
        step_s += [clock / steps for clock, _ in found["none"]]
    return {
        "step_ms": statistics.median(step_s) * 1e3,
        **{mode: percent(times[mode], times["none"], 0) for mode in MODES[1:]},
        **{f"{mode}_cpu": percent(times[mode], times["none"], 1) for mode in MODES[1:]},
        "rank_mib": statistics.median(larger),
    }


def one_start(width: int, length: int, rounds: int) -> tuple[int, dict[str, Times], dict[str, float]]:
    """Steps a turn; seconds of each turn, by mode; peak MiB, by mode."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        workers = {mode: Worker(mode, Path(folder) / mode, width, length) for mode in MODES}
        steps = max(1, round(TURN_S / (workers["none"].seconds(3)[0] / 3)))
        times: dict[str, Times] = {mode: [] for mode in MODES}
        for number in range(rounds):
            order = MODES[number % 3 :] + MODES[: number % 3]
            for mode in order:
                times[mode].append(workers[mode].seconds(steps))
        peaks = {mode: found.peak_mib for mode, found in workers.items()}
        for found in workers.values():
            found.close()
    return steps, times, peaks


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        folder, width, length = arguments.worker
        worker(Path(folder), int(width), int(length))
        return
    from nsadiag.commands.output import machine, versions

    rounds, starts = (30, 3) if arguments.quick else (200, 10)
    p50, p99 = event_us()
    short, long = compare(0.005, 32, rounds, starts), compare(0.100, 256, rounds, starts)
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

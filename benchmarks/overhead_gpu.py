#!/usr/bin/env python3
"""What being watched costs a training job on a GPU: nsa's production step, eager, compiled, and with 32k tokens.

    python benchmarks/overhead_gpu.py            # eight minutes on one GPU
    python benchmarks/overhead_gpu.py --quick    # four
    python benchmarks/overhead_gpu.py --json

Two processes train nsa's model (12 layers, 2,048 tokens, bf16, DDP, activation checkpointing, fused AdamW): one as it
is, one under `nsadiag run --probes light`. They take turns of some steps, in changing order, the watched one as it is,
with its probes taken out, with the agent beside it stopped, and with a hook on every parameter. Two processes that do
the same differ by 1 to 2 % for as long as they live, so what counts is compared within one:

    probes    light against its probes taken out
    agent     light against its agent stopped
    every     a hook on each of the 123 parameters, where light has some 30 and 13: what those cost, magnified
    noise     its probes taken out against its probes taken out: what the figures above are worth
    light     all of it, against the process that nobody watches
    control   probes taken out against the process that nobody watches

A figure is the mean of the faster half of all steps against the other's, in per cent, and the interval in which it lies
in 95 % of random choices of rounds. With 32k tokens the GPU is the limit, and nothing but it is noise. A job whose
noise or control may be as large as the aim is not settled, whatever its figures are: the machine was too restless.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PRODUCTION = "m7c_125m_2xa100_production"
WORKER = Path(__file__).with_name("gpu_worker.py")
TURN_STEPS = 6
CHOICES = 400  # random ones, for an interval
AIM_PCT = 0.5  # that light probes may cost
# By name: what differs from the production configuration, and seconds of turns (quick, else).
JOBS: dict[str, tuple[list[str], tuple[int, int]]] = {
    "eager": ([], (80, 170)),
    "compiled": (["train.compile=true"], (60, 140)),
    "32k": (["data.seq_len=32768"], (30, 50)),
}
# By condition: whether the process is watched, its probes (in, out, every: a hook on each parameter), whether the agent runs.
CONDITIONS = {
    "plain": (False, "out", True),
    "light": (True, "in", True),
    "removed": (True, "out", True),
    "again": (True, "out", True),
    "alone": (True, "in", False),
    "every": (True, "every", True),
}
COMPARED = {
    "probes": ("light", "removed"),
    "agent": ("light", "alone"),
    "every": ("every", "removed"),
    "noise": ("again", "removed"),
    "light": ("light", "plain"),
    "control": ("removed", "plain"),
}
Turn = list[float]  # milliseconds of each step


class Worker:
    """A process that takes turns."""

    def __init__(self, folder: Path, job: list[str], *, watched: bool) -> None:
        folder.mkdir()
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        line = [sys.executable, str(WORKER), str(folder), *job]
        # A worker that waits for its turn is blocked on a pipe: that would be called hung, and rightly.
        watch = ["nsadiag", "run", "--stall-after", "36000", "--out", str(folder / "run"), "--", *line]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *watch] if watched else line,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._folder = folder

    def ready(self) -> None:
        """Returns when it is warm. RuntimeError with its last words if it ends before."""
        while True:
            # Without O_NONBLOCK this would wait for a reader for ever, also for one that has died.
            with contextlib.suppress(OSError):
                handle = os.open(self._folder / "in", os.O_WRONLY | os.O_NONBLOCK)
                break
            if self._process.poll() is not None:
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.1)
        self._in = os.fdopen(handle, "w")
        self._out = (self._folder / "out").open()

    def take(self, probes: str, *, agent: bool) -> dict[str, Any]:
        """One turn. What was started is the agent; the rank is its descendant, and goes on while it is stopped."""
        if not agent:
            self._process.send_signal(signal.SIGSTOP)
        try:
            self._in.write(json.dumps({"probes": probes, "steps": TURN_STEPS}) + "\n")
            self._in.flush()
            told: dict[str, Any] = json.loads(self._out.readline())
        finally:
            self._process.send_signal(signal.SIGCONT)
        return told

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(60)


@contextlib.contextmanager
def two_workers(job: list[str]) -> Iterator[dict[bool, Worker]]:
    """The plain one and the watched one, warm."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        workers = {yes: Worker(Path(folder) / str(yes), job, watched=yes) for yes in (False, True)}
        for worker in workers.values():
            worker.ready()
        yield workers
        for worker in workers.values():
            worker.close()


def take_turns(job: list[str], seconds: float) -> tuple[dict[str, list[Turn]], dict[str, float]]:
    """Each condition's turns, one a round; and its events a step."""
    turns: dict[str, list[Turn]] = {name: [] for name in CONDITIONS}
    events = {}
    dice = random.Random(0)
    with two_workers(job) as workers:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name in dice.sample(list(CONDITIONS), len(CONDITIONS)):
                watched, probes, agent = CONDITIONS[name]
                told = workers[watched].take(probes, agent=agent)
                turns[name].append(told["ms"])
                events[name] = told["events"]
    return turns, events


def typical(turns: Sequence[Turn]) -> float:
    """The mean of the faster half of all steps: on a shared machine the slow ones are a neighbour's."""
    steps = sorted(step for turn in turns for step in turn)
    return statistics.fmean(steps[: max(1, len(steps) // 2)])


def compare(one: list[Turn], other: list[Turn]) -> tuple[float, float, float]:
    """Per cent by which `one` takes longer, and between which bounds with 95 %."""
    dice, rounds = random.Random(0), range(len(one))

    def percent(chosen: Sequence[int]) -> float:
        return (typical([one[n] for n in chosen]) / typical([other[n] for n in chosen]) - 1) * 100

    chances = sorted(percent(dice.choices(rounds, k=len(rounds))) for _ in range(CHOICES))
    return percent(rounds), chances[CHOICES // 40], chances[-CHOICES // 40 - 1]


def measure(names: list[str], *, quick: bool) -> dict[str, Any]:
    """The figures of each job."""
    from nsa.options import load_train_config

    figures: dict[str, Any] = {}
    for name in names:
        options, seconds = JOBS[name]
        turns, events = take_turns([PRODUCTION, *options], seconds[0 if quick else 1])
        data, step_ms = load_train_config(PRODUCTION, options).data, typical(turns["plain"])
        figures[f"gpu_rounds_{name}"] = len(turns["plain"])
        figures[f"gpu_step_ms_{name}"] = step_ms
        figures[f"gpu_tokens_per_s_{name}"] = data.batch_size * data.seq_len / step_ms * 1e3
        figures[f"gpu_events_{name}"] = events["light"]
        for figure, (one, other) in COMPARED.items():
            percent, low, high = compare(turns[one], turns[other])
            figures[f"gpu_{figure}_pct_{name}"] = percent
            figures[f"gpu_{figure}_pct_{name}_95"] = (low, high)
        figures[f"gpu_settled_{name}"] = all(
            -AIM_PCT < bound < AIM_PCT
            for nothing in ("noise", "control")
            for bound in figures[f"gpu_{nothing}_pct_{name}_95"]
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; all of them")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments = parser.parse_args()
    from nsadiag.commands.output import machine, versions

    figures = measure(arguments.jobs or list(JOBS), quick=arguments.quick)
    if arguments.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:36}{_shown(value):>16}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " … ".join(f"{v:.2f}" for v in value) if isinstance(value, tuple) else f"{value:.2f}"


if __name__ == "__main__":
    main()

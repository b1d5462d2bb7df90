#!/usr/bin/env python3
"""What being watched costs a training job on a GPU: nsa's production step, eager, compiled, as a CUDA graph, and with 32k tokens.

    python benchmarks/cost/overhead_gpu.py            # twelve minutes on one GPU
    python benchmarks/cost/overhead_gpu.py --quick    # six
    python benchmarks/cost/overhead_gpu.py --all      # twice as long: agent, every and control too
    python benchmarks/cost/overhead_gpu.py --json

A process trains nsa's model (12 layers, 2,048 tokens, bf16, DDP, activation checkpointing, fused AdamW) under
`nsadiag run --probes light`. It takes turns of some steps, as it is and with its probes taken out, hundreds of rounds of
them in changing order. Eager and compiled, where Python launches what the GPU waits for, turns are two steps long, since a
core's speed drifts within a second, and four such processes work side by side, each on a core of its own:

    probes    light against its probes taken out
    noise     its probes taken out against its probes taken out: what the figures are worth
    agent     light against the agent beside it stopped
    every     a hook on each of the 123 parameters, where light has some 30 and 13: what those cost, magnified
    light     all of it, against a process that nobody watches
    control   probes taken out against the process that nobody watches

Two processes that do the same differ by 1 to 2 % for as long as they live, so the last two say less than the others.

A figure is the middle of all rounds' differences, in per cent of a step: a round compares turns that follow each other, by
the faster half of their steps, so that slow changes of the machine meet both. Beside it is the interval in which it lies in 95 % of
random choices of rounds. Rounds during which the GPU's clock changed are left out. A job whose noise may be as large as
0.2 % is not settled, whatever its figures are: the machine was too restless, or the rounds were too few.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

PRODUCTION = "m7c_125m_2xa100_production"
WORKER = Path(__file__).with_name("gpu_worker.py")
CHOICES = 1000  # random ones, for an interval
SETTLED_PCT = 0.2
CLOCK_PCT = 2.0  # by which the GPU's clock may differ within a round


class Job(NamedTuple):
    """One way to train."""

    options: list[str]  # what differs from the production configuration
    steps: int  # of a turn
    processes: int  # side by side
    seconds: tuple[int, int]  # of turns: quick, else


JOBS = {
    "eager": Job([], 2, 4, (80, 240)),
    "compiled": Job(["train.compile=true"], 2, 4, (80, 240)),
    "graph": Job(["train.compile=true", "train.cuda_graph=true", "parallel.mode=single"], 20, 1, (30, 60)),
    "32k": Job(["data.seq_len=32768"], 4, 1, (30, 60)),
}
# By condition: whether the process is watched, its probes (in, out, every: a hook on each parameter), whether the agent runs.
CONDITIONS = {
    "light": (True, "in", True),
    "removed": (True, "out", True),
    "again": (True, "out", True),
    "alone": (True, "in", False),
    "every": (True, "every", True),
    "plain": (False, "out", True),
}
COMPARED = {  # by figure: a condition, and those against whose mean it stands
    "probes": ("light", "removed", "again"),
    "noise": ("again", "removed"),
    "agent": ("light", "alone"),
    "every": ("every", "removed"),
    "light": ("light", "plain"),
    "control": ("removed", "plain"),
}
FEW = ("light", "removed", "again")  # conditions without --all
Told = dict[str, Any]  # of a turn: milliseconds of each step, events a step, the GPU's clock after it


class Worker:
    """A process that takes turns."""

    def __init__(self, folder: Path, options: list[str], core: int, *, watched: bool) -> None:
        folder.mkdir()
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        line = [sys.executable, str(WORKER), str(folder), str(core), PRODUCTION, *options]
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

    def take(self, probes: str, steps: int, *, agent: bool) -> dict[str, Any]:
        """One turn. What was started is the agent; the rank is its descendant, and goes on while it is stopped."""
        if not agent:
            self._process.send_signal(signal.SIGSTOP)
        try:
            self._in.write(json.dumps({"probes": probes, "steps": steps}) + "\n")
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
def workers(job: Job, kinds: set[bool]) -> Iterator[list[dict[bool, Worker]]]:
    """As often as the job has processes: the watched one, the plain one, or both, warm."""
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[-min(job.processes, max(1, len(cores) - 1)) :]  # one is left for the agents
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        started = [
            {yes: Worker(Path(folder) / f"{core}-{yes}", job.options, core, watched=yes) for yes in kinds}
            for core in cores
        ]
        every = [worker for pair in started for worker in pair.values()]
        for worker in every:
            worker.ready()
        yield started
        for worker in every:
            worker.close()


def take_turns(job: Job, names: Sequence[str], seconds: float) -> list[dict[str, Told]]:
    """Rounds of one turn of each condition, of all processes."""
    with (
        workers(job, {CONDITIONS[name][0] for name in names}) as started,
        ThreadPoolExecutor(len(started)) as pool,
    ):
        until = time.monotonic() + seconds
        taken = [
            pool.submit(_turns_of, pair, names, job.steps, until, random.Random(i))
            for i, pair in enumerate(started)
        ]
        return [told for each in taken for told in each.result()]


def _turns_of(
    pair: dict[bool, Worker], names: Sequence[str], steps: int, until: float, dice: random.Random
) -> list[dict[str, Told]]:
    rounds = []
    while time.monotonic() < until:
        told = {}
        for name in dice.sample(list(names), len(names)):
            watched, probes, agent = CONDITIONS[name]
            told[name] = pair[watched].take(probes, steps, agent=agent)
        rounds.append(told)
    return rounds


def at_one_clock(told: dict[str, Told]) -> bool:
    """Whether the GPU ran at the same clock throughout a round."""
    clocks = [turn["clock"] for turn in told.values()]
    return max(clocks) <= min(clocks) * (1 + CLOCK_PCT / 100)


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half: a neighbour's work on a shared machine is in the rest."""
    values, cut = sorted(values), len(values) // 4
    return statistics.fmean(values[cut : len(values) - cut])


def faster(steps: Sequence[float]) -> float:
    """The mean of the faster half: a neighbour's work can only add."""
    return statistics.fmean(sorted(steps)[: len(steps) // 2])


def compare(rounds: list[dict[str, Told]], one: str, *others: str) -> tuple[float, float, float]:
    """Per cent by which `one` takes longer than the `others` do, and between which bounds with 95 %."""
    dice = random.Random(0)
    each = [
        (faster(told[one]["ms"]) / statistics.fmean(faster(told[other]["ms"]) for other in others) - 1) * 100
        for told in rounds
    ]
    chances = sorted(middle(dice.choices(each, k=len(each))) for _ in range(CHOICES))
    return middle(each), chances[CHOICES // 40], chances[-CHOICES // 40 - 1]


def measure(
    jobs: list[str], names: Sequence[str], seconds: float | None, kept: Path | None, *, quick: bool
) -> dict[str, Any]:
    """The figures of each job; `seconds` of turns, if they shall not be the job's own; rounds are `kept`, one a line."""
    from nsa.options import load_train_config

    figures: dict[str, Any] = {}
    for job in jobs:
        every = take_turns(JOBS[job], names, seconds or JOBS[job].seconds[0 if quick else 1])
        if kept is not None:
            with kept.open("a") as file:
                file.writelines(json.dumps({"job": job, **told}) + "\n" for told in every)
        rounds = [told for told in every if at_one_clock(told)]
        if not rounds:
            sys.exit(
                f"error: the GPU's clock changed in each of {len(every)} rounds of {job}\nhint: use a GPU of your own"
            )
        data = load_train_config(PRODUCTION, JOBS[job].options).data
        step_ms = middle([ms for told in rounds for ms in told["removed"]["ms"]])
        figures[f"gpu_rounds_{job}"] = len(rounds)
        figures[f"gpu_rounds_left_out_{job}"] = len(every) - len(rounds)
        figures[f"gpu_clock_mhz_{job}"] = statistics.median(told["removed"]["clock"] for told in rounds)
        figures[f"gpu_step_ms_{job}"] = step_ms
        figures[f"gpu_tokens_per_s_{job}"] = data.batch_size * data.seq_len / step_ms * 1e3
        figures[f"gpu_events_{job}"] = statistics.median(told["light"]["events"] for told in rounds)
        for figure, pair in COMPARED.items():
            if set(pair) <= set(names):
                percent, low, high = compare(rounds, *pair)
                figures[f"gpu_{figure}_pct_{job}"] = percent
                figures[f"gpu_{figure}_pct_{job}_95"] = (low, high)
        bounds = figures[f"gpu_noise_pct_{job}_95"]
        figures[f"gpu_settled_{job}"] = all(-SETTLED_PCT < bound < SETTLED_PCT for bound in bounds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; all of them")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--all", action="store_true", help="compare with a stopped agent and a plain process too"
    )
    parser.add_argument("--rounds", type=Path, metavar="FILE", help="write every step of every round there")
    parser.add_argument("--seconds", type=float, help="of turns, for every job")
    arguments = parser.parse_args()
    from nsadiag.commands.output import machine, versions

    names = list(CONDITIONS) if arguments.all else FEW
    figures = measure(
        arguments.jobs or list(JOBS), names, arguments.seconds, arguments.rounds, quick=arguments.quick
    )
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

#!/usr/bin/env python3
"""What being watched costs a training job on a GPU: nsa's production step, eager, compiled, as a CUDA graph, and with 32k tokens.

    python benchmarks/cost/overhead_gpu.py            # twelve minutes on one GPU
    python benchmarks/cost/overhead_gpu.py --quick    # six
    python benchmarks/cost/overhead_gpu.py --all      # twice as long: armed, agent, every and control too
    python benchmarks/cost/overhead_gpu.py ddp fsdp2 ddp-short fsdp2-short --armed --beside    # four minutes on two GPUs
    python benchmarks/cost/overhead_gpu.py --json

A process trains nsa's model (12 layers, 2,048 tokens, bf16, DDP, activation checkpointing, fused AdamW) under
`nsadiag run --probes light`. It takes turns of some steps, as it is and with its probes taken out, hundreds of rounds of
them in changing order. Eager and compiled, where Python launches what the GPU waits for, turns are two steps long, since a
core's speed drifts within a second, and four such processes work side by side, each on a core of its own:

    probes    light against its probes taken out
    armed     what `nsadiag arm` records against the same
    noise     its probes taken out against its probes taken out: what the figures are worth
    agent     light against the agent beside it stopped
    every     a hook on each of the 123 parameters, where light has some 30 and 13: what those cost, magnified
    light     all of it, against a process that nobody watches
    control   probes taken out against the process that nobody watches

Two processes that do the same differ by 1 to 2 % for as long as they live, so the last two say less than the others.

On two GPUs the ranks of one job take their turns together: each gets the same requests, and so does as many steps as its peer.
A step's time is the mean over ranks. `--beside` runs all jobs at the same time, each rank on a core of its own.

A figure is the middle of all rounds' differences, in per cent of a step: a round compares turns that follow each other, by
the faster half of their steps, so that slow changes of the machine meet both. Beside it is the interval in which it lies in 95 % of
random choices of rounds. Rounds during which the GPU's clock changed are left out. A job whose noise may be as large as
0.2 % is not settled, whatever its figures are: the machine was too restless, or the rounds were too few.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
from threading import Barrier
from typing import Any, NamedTuple, TextIO

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
    ranks: int = 1


JOBS = {
    "eager": Job([], 2, 4, (80, 240)),
    "compiled": Job(["train.compile=true"], 2, 4, (80, 240)),
    "graph": Job(["train.compile=true", "train.cuda_graph=true", "parallel.mode=single"], 20, 1, (30, 60)),
    "32k": Job(["data.seq_len=32768"], 4, 1, (30, 60)),
    "eager-short": Job(["model.layers=1"], 10, 4, (30, 60)),
    "compiled-short": Job(["train.compile=true", "model.layers=1"], 10, 4, (30, 60)),
    **{
        f"{mode}{compiled and '-compiled'}{short and '-short'}": Job(
            [
                f"parallel.mode={mode}",
                *(["train.compile=true"] * bool(compiled)),
                *(["model.layers=1"] * bool(short)),
            ],
            10 if short else 4,
            1,
            (60, 240),
            ranks=2,
        )
        for mode in ("ddp", "fsdp2")
        for compiled in ("", "compiled")
        for short in ("", "short")
    },
}
BY_DEFAULT = ["eager", "compiled", "graph", "32k"]
# By condition: whether the process is watched, its probes (every: light with a hook on each parameter), whether the agent runs.
CONDITIONS = {
    "light": (True, "light", True),
    "removed": (True, "out", True),
    "again": (True, "out", True),
    "armed": (True, "armed", True),
    "alone": (True, "light", False),
    "every": (True, "every", True),
    "plain": (False, "out", True),
}
COMPARED = {  # by figure: a condition, and those against whose mean it stands
    "probes": ("light", "removed", "again"),
    "armed": ("armed", "removed", "again"),
    "noise": ("again", "removed"),
    "agent": ("light", "alone"),
    "every": ("every", "removed"),
    "light": ("light", "plain"),
    "control": ("removed", "plain"),
}
FEW = ("light", "removed", "again")  # conditions without --all
Told = dict[str, Any]  # of a turn: milliseconds of each step, events a step, the GPU's clock after it


class Worker:
    """A job that takes turns: a process, or as many ranks as it has cores."""

    def __init__(self, folder: Path, options: list[str], cores: Sequence[int], *, watched: bool) -> None:
        folder.mkdir()
        for rank in range(len(cores)):
            os.mkfifo(folder / f"in{rank}")
            os.mkfifo(folder / f"out{rank}")
        line = [str(WORKER), str(folder), ",".join(map(str, cores)), PRODUCTION, *options]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(cores))]
        line = [sys.executable, *(torchrun if len(cores) > 1 else []), *line]
        # A worker that waits for its turn is blocked on a pipe: that would be called hung, and rightly.
        watch = ["nsadiag", "run", "--stall-after", "36000", "--out", str(folder / "run"), "--", *line]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *watch] if watched else line,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._folder, self._ranks = folder, range(len(cores))
        self._in: list[TextIO] = []
        self._out: list[TextIO] = []

    def ready(self) -> None:
        """Returns when it is warm. RuntimeError with its last words if it ends before."""
        self._in = [self._writer(self._folder / f"in{rank}") for rank in self._ranks]
        self._out = [(self._folder / f"out{rank}").open() for rank in self._ranks]

    def _writer(self, path: Path) -> TextIO:
        while True:
            # Without O_NONBLOCK this would wait for a reader for ever, also for one that has died.
            with contextlib.suppress(OSError):
                return os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w")
            if self._process.poll() is not None:
                raise RuntimeError(self._last_words())
            time.sleep(0.1)

    def _last_words(self) -> str:
        return (self._folder / "log").read_text()[-2000:]

    def take(self, probes: str, steps: int, *, agent: bool) -> Told:
        """One turn of all ranks. What was started is the agent; ranks are its descendants, and go on while it is stopped."""
        if not agent:
            self._process.send_signal(signal.SIGSTOP)
        try:
            for requests in self._in:
                requests.write(json.dumps({"probes": probes, "steps": steps}) + "\n")
                requests.flush()
            lines = [answers.readline() for answers in self._out]
        finally:
            self._process.send_signal(signal.SIGCONT)
        if not all(lines):
            raise RuntimeError(self._last_words())
        told = [json.loads(line) for line in lines]
        return {
            "ms": [statistics.fmean(each) for each in zip(*(rank["ms"] for rank in told), strict=True)],
            "events": statistics.fmean(rank["events"] for rank in told),
            "clock": [rank["clock"] for rank in told],
        }

    def close(self) -> None:
        """Its end: by itself where all ranks hear that nothing more comes."""
        for pipe in (*self._in, *self._out):
            pipe.close()
        try:
            self._process.wait(60 if self._in else 0)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(60)


@contextlib.contextmanager
def workers(
    job: Job, kinds: set[bool], options: list[str], cores: Sequence[int]
) -> Iterator[list[dict[bool, Worker]]]:
    """As often as the job has processes: the watched one, the plain one, or both, warm."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, contextlib.ExitStack() as stack:
        started: list[dict[bool, Worker]] = []
        for number in range(0, len(cores), job.ranks):
            mine = cores[number : number + job.ranks]
            started.append({})
            for yes in kinds:
                worker = Worker(Path(folder) / f"{number}-{yes}", [*job.options, *options], mine, watched=yes)
                stack.callback(worker.close)
                started[-1][yes] = worker
        for pair in started:
            for worker in pair.values():
                worker.ready()
        yield started


def cores_of(jobs: Sequence[Job]) -> list[list[int]]:
    """Cores for the ranks of each job, of its own as far as there are enough; one is left for the agents."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    free = itertools.cycle(cores[: max(1, len(cores) - 1)])
    # A core that serves two processes of one job would have them wait for each other.
    counts = [job.processes if job.ranks > 1 else min(job.processes, max(1, len(cores) - 1)) for job in jobs]
    return [list(itertools.islice(free, count * job.ranks)) for job, count in zip(jobs, counts, strict=True)]


def take_turns(
    job: Job,
    names: Sequence[str],
    seconds: float,
    options: list[str],
    cores: Sequence[int],
    all_warm: Barrier,
) -> list[dict[str, Told]]:
    """Rounds of one turn of each condition, of all processes; they begin when all jobs are warm."""
    with (
        workers(job, {CONDITIONS[name][0] for name in names}, options, cores) as started,
        ThreadPoolExecutor(len(started)) as pool,
    ):
        all_warm.wait()
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
    """Whether each GPU ran at the same clock throughout a round."""
    by_gpu = zip(*(turn["clock"] for turn in told.values()), strict=True)
    return all(max(clocks) <= min(clocks) * (1 + CLOCK_PCT / 100) for clocks in by_gpu)


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


def measure(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The figures of each job."""
    figures: dict[str, Any] = {}
    every: dict[str, list[dict[str, Told]]] = {}
    chosen = arguments.jobs or BY_DEFAULT
    groups = [chosen] if arguments.beside else [[name] for name in chosen]
    for group in groups:
        barrier = Barrier(len(group))
        with ThreadPoolExecutor(len(group)) as pool:
            taken = {
                name: pool.submit(
                    _until_all_or_none,
                    barrier,
                    JOBS[name],
                    names,
                    arguments.seconds or JOBS[name].seconds[0 if arguments.quick else 1],
                    arguments.options,
                    cores,
                )
                for name, cores in zip(group, cores_of([JOBS[name] for name in group]), strict=True)
            }
        every |= {name: future.result() for name, future in taken.items()}
    for name, rounds in every.items():
        if arguments.rounds is not None:
            with arguments.rounds.open("a") as file:
                file.writelines(json.dumps({"job": name, **told}) + "\n" for told in rounds)
        figures |= _figures_of(name, rounds, names, arguments.options)
    return figures


def _until_all_or_none(
    barrier: Barrier, job: Job, names: Sequence[str], seconds: float, options: list[str], cores: Sequence[int]
) -> list[dict[str, Told]]:
    try:
        return take_turns(job, names, seconds, options, cores, barrier)
    except BaseException:
        barrier.abort()  # the others would wait for this one
        raise


def _figures_of(
    job: str, every: list[dict[str, Told]], names: Sequence[str], options: list[str]
) -> dict[str, Any]:
    """`every`: all rounds."""
    from nsa.options import load_train_config

    rounds = [told for told in every if at_one_clock(told)]
    if not rounds:
        sys.exit(
            f"error: the GPU's clock changed in each of {len(every)} rounds of {job}\nhint: use a GPU of your own"
        )
    data = load_train_config(PRODUCTION, [*JOBS[job].options, *options]).data
    step_ms = middle([ms for told in rounds for ms in told["removed"]["ms"]])
    figures = {
        f"gpu_rounds_{job}": len(rounds),
        f"gpu_rounds_left_out_{job}": len(every) - len(rounds),
        f"gpu_clock_mhz_{job}": statistics.median(told["removed"]["clock"][0] for told in rounds),
        f"gpu_step_ms_{job}": step_ms,
        f"gpu_tokens_per_s_{job}": JOBS[job].ranks * data.batch_size * data.seq_len / step_ms * 1e3,
        f"gpu_events_{job}": statistics.median(told["light"]["events"] for told in rounds),
    }
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
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; {', '.join(BY_DEFAULT)}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--all", action="store_true", help="compare with a stopped agent and a plain process too"
    )
    parser.add_argument("--armed", action="store_true", help="compare what `nsadiag arm` records too")
    parser.add_argument("--beside", action="store_true", help="all jobs at the same time")
    parser.add_argument("--rounds", type=Path, metavar="FILE", help="write every step of every round there")
    parser.add_argument("--seconds", type=float, help="of turns, for every job")
    parser.add_argument(
        "--with", dest="options", action="append", default=[], metavar="KEY=VALUE", help="of nsa.train"
    )
    arguments = parser.parse_args()
    from nsadiag.commands.output import machine, versions

    names = list(CONDITIONS) if arguments.all else [*FEW, *(["armed"] * arguments.armed)]
    figures = measure(arguments, names)
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

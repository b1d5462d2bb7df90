#!/usr/bin/env python3
"""Healthy programs with long quiet phases: how many are stopped or called hung, and how many suspicions are withdrawn.

    python benchmarks/verdicts/quiet_phases.py --runs 200 --jobs 8            # shapes in turn, on warm launchers
    python benchmarks/verdicts/quiet_phases.py --runs 80 --command            # each through `nsadiag run -- torchrun ...`
    python benchmarks/verdicts/quiet_phases.py --runs 80 --armed              # each by torchrun alone, in an armed environment
    python benchmarks/verdicts/quiet_phases.py --runs 2000 --jobs 80 --seconds 6 16 --within 480   # begins no run after 8 minutes
    python benchmarks/verdicts/quiet_phases.py --only upload --seconds 60 120 # shapes in whose name this stands, longer phases
    python benchmarks/verdicts/quiet_phases.py --rows rows.jsonl              # adds to the rows of earlier runs, and counts them too
    python benchmarks/verdicts/quiet_phases.py --keep DIR                     # where run directories of wrong ones are kept

quiet_programs/ has the shapes: in each, one rank or all wait for the world outside, a process, a thread, storage or
their peers, or compute, for some seconds to half a minute, between steps of a small training. Which rank, for how
long, how often, after how many steps, on how many ranks, and how the ranks meet then is drawn anew for each run, from a seed
that its row names. Most sleep, so that many run at once; the cores are to be busy with something else.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PROGRAMS = REPO / "benchmarks/verdicts/quiet_programs"
sys.path[:0] = [str(REPO), str(PROGRAMS)]

from shared import Row, answer, collected, environment  # noqa: E402

from nsadiag.agent.watching.state import WatchOptions  # noqa: E402
from nsadiag.agent.watching.watch import Watch  # noqa: E402
from nsadiag.commands.armed.environments import variables  # noqa: E402
from nsadiag.commands.output import machine  # noqa: E402
from nsadiag.commands.run import answer_first  # noqa: E402
from nsadiag.engines.local import WarmLauncher, run_warm  # noqa: E402
from nsadiag.evidence.arming.settings import Settings  # noqa: E402
from nsadiag.evidence.layout import RunDir, read_json  # noqa: E402

TIMEOUT_S = 600.0  # of a program that does not end


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a shape."""

    shape: str
    seconds: float
    seed: int
    ranks: int
    restarts: int

    @property
    def arguments(self) -> list[str]:
        return [str(PROGRAMS / "train.py"), self.shape, f"{self.seconds:.2f}", str(self.seed)]


def drawn(
    only: str, count: int, seconds: tuple[float, float], first_seed: int, *, command: bool
) -> Iterator[Run]:
    """So many runs, the shapes in turn. NCCL wants a GPU for each rank."""
    from train import SHAPES

    most = int(machine()["gpus"]) if os.environ["QUIET_BACKEND"] == "nccl" else sys.maxsize
    names = [n for n in SHAPES if re.search(only, n) and (command or not SHAPES[n].restarts)]
    if not names:
        sys.exit(f"error: no shape has {only!r} in its name; there are {', '.join(SHAPES)}")
    for number in range(count):
        shape, seed = SHAPES[names[number % len(names)]], first_seed + number
        draw = random.Random(seed)
        yield Run(
            shape=names[number % len(names)],
            seconds=seconds[0] * (seconds[1] / seconds[0]) ** draw.random(),
            seed=seed,
            ranks=min(draw.choice(shape.ranks), most),
            restarts=shape.restarts,
        )


# -- one run --------------------------------------------------------------------------------------


def by_launcher(run: Run, folder: Path, launcher: WarmLauncher) -> str:
    """Watched as `nsadiag run` watches; returns why the job was stopped, if it was."""
    from nsadiag.analysis.verdict import judge_directory

    out = RunDir(path=folder / "run")
    watch = run_warm(
        launcher,
        run.arguments,
        out,
        WatchOptions(timeout_s=TIMEOUT_S),
        world_size=run.ranks,
        probes="light",
        cwd=folder,
        make_watch=partial(Watch, on_stuck=lambda: answer_first(out)),
    )
    judge_directory(out.path, live=True)
    return watch.stopped or ""


def by_command(run: Run, folder: Path, service: str) -> str:
    """As a user starts it."""
    line = ["torchrun", "--standalone", f"--nproc-per-node={run.ranks}", f"--max-restarts={run.restarts}"]
    if run.ranks == 1:
        line = ["python"]
    ours = ["nsadiag", "run", "--quiet", "--timeout", str(TIMEOUT_S), "--out", str(folder / "run"), "--"]
    env = environment(QUIET_SERVICE=service, QUIET_SCRATCH=str(folder))
    subprocess.run([*ours, *line, *run.arguments], cwd=folder, env=env, capture_output=True, check=False)
    return str(read_json(folder / "run" / "watch.json", {}).get("stopped") or "")


def by_torchrun(run: Run, folder: Path, bench: Bench) -> Row:
    """Without nsadiag, in an environment that is armed: all runs have one watcher, and an alert is a bundle."""
    line = ["torchrun", "--standalone", f"--nproc-per-node={run.ranks}", f"--max-restarts={run.restarts}"]
    armed = Settings(version="", python="", package="", out=str(bench.home / "bundles"))
    env = environment(
        QUIET_SERVICE=bench.port, QUIET_SCRATCH=str(folder), NSADIAG_RUNTIME_DIR=str(bench.home / "armed")
    )
    paths = [env.get("PYTHONPATH", ""), str(REPO)]
    env |= variables(armed)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (env["PYTHONPATH"], *paths)))
    began = time.monotonic()
    done = subprocess.run(
        [*line, *run.arguments], cwd=folder, env=env, capture_output=True, check=False, timeout=TIMEOUT_S
    )
    alerts = [about for about in map(read_about, (bench.home / "bundles").glob("*/run.json"))
              if about.get("command", [])[-3:] == run.arguments[1:]]  # fmt: skip
    standing = [about for about in alerts if not about.get("withdrawn_at")]
    (folder / "output.log").write_bytes(done.stdout + done.stderr)
    return {
        **vars(run),
        "stopped": "" if done.returncode == 0 else f"exit code {done.returncode}",
        "outcome": "hung" if standing else "healthy",
        "class": None,
        "summary": None,
        "exit_code": done.returncode,
        "looks": {"watched": int((bench.home / "armed" / "watcher.json").exists())},
        "suspicions": len(alerts),
        "withdrawn": len(alerts) - len(standing),
        "suspected": [str(about.get("name")) for about in alerts],
        "longest_quiet_s": round(time.monotonic() - began, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def read_about(path: Path) -> Row:
    return dict(read_json(path, {}))


def row_of(run: Run, folder: Path, stopped: str) -> Row:
    verdict = read_json(folder / "run" / "verdict.json", {})
    watch = read_json(folder / "run" / "watch.json", {})
    suspicions = watch.get("suspicions", [])
    return {
        **vars(run),
        "stopped": stopped,
        "outcome": verdict.get("outcome", "none"),
        "class": verdict.get("class"),
        "summary": verdict.get("summary"),
        "exit_code": watch.get("launcher_exit_code"),
        "looks": Counter(look["judgement"] for look in watch.get("looks", [])),
        "suspicions": len(suspicions),
        "withdrawn": sum(s["withdrawn_s"] is not None for s in suspicions),
        "suspected": [s["says"] for s in suspicions],
        "longest_quiet_s": watch.get("longest_quiet_s"),
        "load": round(os.getloadavg()[0], 1),
    }


def is_right(row: Row) -> bool:
    return not row["stopped"] and row["outcome"] in ("healthy", "slow")


# -- many -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def service() -> Iterator[str]:
    """The world outside, by its port."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "service.py")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where runs are made, and until when one may begin. Sent to the processes that make them."""

    home: Path
    port: str
    keep: Path | None
    command: bool
    armed: bool
    until: float  # by the monotonic clock, which all processes share


@cache
def own_launcher(bench: Bench) -> tuple[WarmLauncher, Path]:
    """This process's, with the scratch directory that its jobs find in their environment."""
    scratch = bench.home / f"scratch{os.getpid()}"
    env = {"QUIET_SERVICE": bench.port, "QUIET_SCRATCH": str(scratch)}
    launcher = WarmLauncher(bench.home / f"launcher{os.getpid()}.log", preload=("torch",), env=env)
    Finalize(None, launcher.close, exitpriority=0)
    return launcher, scratch


def one(bench: Bench, run: Run) -> Row | None:
    """Made in a process of its own, as `nsadiag run` would be: one that watched many would be late for all of them."""
    if time.monotonic() > bench.until:
        return None
    folder = bench.home / f"{run.shape}-{run.seed}"
    folder.mkdir()
    if bench.armed:
        row = by_torchrun(run, folder, bench)
        return kept(bench, folder, row)
    if bench.command:
        stopped = by_command(run, folder, bench.port)
    else:
        launcher, scratch = own_launcher(bench)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        stopped = by_launcher(run, folder, launcher)
    return kept(bench, folder, row_of(run, folder, stopped))


def kept(bench: Bench, folder: Path, row: Row) -> Row:
    """The row; its files stay where they are asked for."""
    if bench.keep and not is_right(row):
        shutil.copytree(folder, bench.keep / folder.name, dirs_exist_ok=True, symlinks=True)
    shutil.rmtree(folder, ignore_errors=True)
    return row


def measured(options: argparse.Namespace, todo: list[Run]) -> Iterator[Row]:
    until = time.monotonic() + options.within
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quiet-")))
        port = stack.enter_context(service())
        pool = stack.enter_context(ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")))
        bench = Bench(
            home=home, port=port, keep=options.keep, command=options.command, armed=options.armed, until=until
        )
        for done in as_completed([pool.submit(one, bench, run) for run in todo]):
            row = done.result()
            if row is None:
                continue
            if not is_right(row) or row["suspicions"]:
                said = "" if is_right(row) else f"WRONG, {row['class']}: {row['summary']} "
                print(
                    f"{row['shape']} ({row['seconds']:.0f} s, seed {row['seed']}): {said}{row['suspected']}",
                    file=sys.stderr,
                    flush=True,
                )
            yield row


def figures(rows: list[Row]) -> Row:
    return {
        "runs": len(rows),
        "shapes": len({row["shape"] for row in rows}),
        "stopped": sum(bool(row["stopped"]) for row in rows),
        "called_hung": sum(row["outcome"] == "hung" for row in rows),
        "outcomes": dict(Counter(f"{row['outcome']} ({row['class']})" for row in rows)),
        "looked_at": sum(bool(row["looks"]) for row in rows),
        "suspicions": sum(row["suspicions"] for row in rows),
        "withdrawn": sum(row["withdrawn"] for row in rows),
        "suspected_shapes": dict(Counter(row["shape"] for row in rows if row["suspicions"])),
        "load_max": max((row["load"] for row in rows), default=None),
        "wrong": [f"{row['shape']}, seed {row['seed']}: {row['class']}" for row in rows if not is_right(row)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=80)
    parser.add_argument(
        "--jobs", type=int, default=4, help="programs at a time, each watched by a process of its own"
    )
    parser.add_argument(
        "--within", type=float, default=math.inf, metavar="SECONDS", help="begin no run after that"
    )
    parser.add_argument("--command", action="store_true", help="through `nsadiag run`, as a user starts them")
    parser.add_argument("--armed", action="store_true", help="by torchrun alone, in an armed environment")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--only", default="", metavar="EXPR", help="shapes in whose name this is found")
    parser.add_argument(
        "--seconds", type=float, nargs=2, default=(6.0, 30.0), help="shortest and longest phase"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument("--keep", type=Path, help="where run directories of wrong ones are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    os.environ["QUIET_BACKEND"] = options.backend
    todo = list(
        drawn(
            options.only,
            options.runs,
            options.seconds,
            options.seed,
            command=options.command or options.armed,
        )
    )
    told = figures(collected(options.rows, measured(options, todo)))
    answer(told, (f"{name:18}{value}" for name, value in told.items()), as_json=options.json)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Healthy programs with long quiet phases in an armed environment, by the thousand: how many alerts, and what is left behind.

    python benchmarks/verdicts/quiet_programs/forked.py --runs 2000 --jobs 120 --within 400 --rows rows.jsonl
    python benchmarks/verdicts/quiet_programs/forked.py --runs 200 --hasty 20      # with a twentieth of the watcher's patience

The shapes of quiet_programs/, as `quiet_phases.py --armed` runs them; but ranks are forked from a process that has imported torch,
and begin to record where those of an armed environment do: right after that import. Several homes have a watcher each, so that
silences do not wait for each other's looks. `--hasty N` divides what the watcher waits for, not what a look takes; phases are to be
as much shorter. Rows name alerts and whether these were withdrawn; the last line what is left once all watchers have ended.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent
REPO = PROGRAMS.parents[2]
WATCHERS_END_S = 60.0
FIRST_PORT, LAST_PORT = 15_000, 32_000
HASTE = {"agent/armed/watch.py": ("SUSPECTED_S = 300.0", "SUSPECTED_S = {:g}", 300.0),
         "agent/armed/followed.py": ("QUIET_S, RHYTHM = 10.0,", "QUIET_S, RHYTHM = {:g},", 10.0)}  # fmt: skip
RUN_S = 240.0  # of a run that does not end


@dataclass(frozen=True, kw_only=True)
class Run:
    shape: str
    seconds: float
    seed: int
    ranks: int


def runs(only: str, seconds: tuple[float, float], seed: int, count: int) -> list[Run]:
    from train import SHAPES

    names = [n for n in SHAPES if re.search(only, n) and not SHAPES[n].restarts]
    found = []
    for number in range(seed, seed + count):
        draw = random.Random(number)
        name = names[number % len(names)]
        length = seconds[0] * (seconds[1] / seconds[0]) ** draw.random()
        found.append(
            Run(shape=name, seconds=length, seed=number, ranks=min(draw.choice(SHAPES[name].ranks), 2))
        )
    return found


def rank(run: Run, number: int, port: int, home: Path, folder: Path) -> None:
    """Never returns."""
    code = 1
    try:
        os.environ.update(
            RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(run.ranks), LOCAL_WORLD_SIZE=str(run.ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), QUIET_SCRATCH=str(folder), OMP_NUM_THREADS="1",
            NSADIAG_RUNTIME_DIR=str(home / "armed"), NSADIAG_ARMED_OUT=str(home / "bundles"),
        )  # fmt: skip
        words = [run.shape, f"{run.seconds:.2f}", str(run.seed)]
        sys.argv = [str(PROGRAMS / "train.py"), *words]
        sys.orig_argv = [sys.executable, *sys.argv]
        log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        from nsadiag.worker.armed import rank as armed

        armed.begin("")
        import torch
        from train import main

        torch.set_num_threads(1)
        main(*words)
        code = 0
    except BaseException:  # whatever it is, it is the end of the rank
        traceback.print_exc()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # as at the end of any Python
    os._exit(code)


def free_ports(place: int, forkers: int) -> Iterator[int]:
    """Ports of this forker's alone, below those that the kernel gives to whoever connects, and free at the moment."""
    each = (LAST_PORT - FIRST_PORT) // forkers
    first = FIRST_PORT + place * each
    for port in itertools.cycle(range(first, first + each)):
        if is_free(port):
            yield port


def is_free(port: int) -> bool:
    """Closed again before anybody is forked, who would have it open, too."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def launcher(run: Run, port: int, home: Path, folder: Path) -> None:
    """A parent of its own for the ranks of each run, since that is what a job is known by. Never returns."""
    os.setsid()
    ranks = []
    for number in range(run.ranks):
        pid = os.fork()
        if not pid:
            rank(run, number, port, home, folder)
        ranks.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    os._exit(min(max(map(abs, codes)), 99))


@dataclass(kw_only=True)
class Going:
    """A run that is going on, by its launcher's pid."""

    run: Run
    folder: Path
    began: float
    looked: bool = False


def begun(run: Run, port: int, home: Path) -> tuple[int, Going]:
    folder = home / f"run-{run.seed}"
    folder.mkdir()
    pid = os.fork()
    if not pid:
        launcher(run, port, home, folder)
    return pid, Going(run=run, folder=folder, began=time.monotonic())


def ended(pid: int, going: Going, home: Path) -> dict[str, object] | None:
    """The row of a run that is over, or has taken too long."""
    # The watcher leaves that in the job's folder once it has looked at a silence.
    going.looked = going.looked or any((home / "armed" / "jobs").glob(f"{pid}-*/watch.json"))
    over, status = os.waitpid(pid, os.WNOHANG)
    took = time.monotonic() - going.began
    code: object = os.waitstatus_to_exitcode(status) if over else "did not end"
    if not over:
        if took < RUN_S:
            return None
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    last = (going.folder / "output.log").read_text(errors="replace")[-300:] if code else ""
    shutil.rmtree(going.folder, ignore_errors=True)
    return {
        **vars(going.run),
        "exit_code": code,
        "took_s": round(took, 1),
        "looked": going.looked,
        **alerts_of(going.run, home),
        "last": last,
    }


def alerts_of(run: Run, home: Path) -> dict[str, int]:
    """Its alerts so far, by the seed at the end of the command that a bundle names, and how many were withdrawn."""
    found = [about for about in abouts(home) if about.get("command", [])[-1:] == [str(run.seed)]]
    return {"alerts": len(found), "withdrawn": sum(bool(about.get("withdrawn_at")) for about in found)}


def imported() -> None:
    """All that a rank would import, torch's compiler for the first step of an optimizer among it; no thread may come of it."""
    import torch
    import torch._dynamo

    from nsadiag.worker.armed import rank  # noqa: F401

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.zeros(2)
    torch.optim.AdamW([weight]).step()


def forker(options: argparse.Namespace, place: int, home: Path) -> None:
    """One of several that make every so-manieth run, some at a time, by forking from what it has imported."""
    mine = runs(options.only, tuple(options.seconds), options.seed, options.runs)[place :: options.forkers]
    imported()
    ports = free_ports(place, options.forkers)
    going: dict[int, Going] = {}
    while going or (mine and time.time() < options.until):
        if mine and time.time() < options.until and len(going) < options.jobs // options.forkers:
            pid, new = begun(mine.pop(0), next(ports), home)
            going[pid] = new
            continue
        time.sleep(0.1)
        for pid, each in list(going.items()):
            if row := ended(pid, each, home):
                del going[pid]
                row |= {"home": home.name, "hasty": options.hasty, "load": round(os.getloadavg()[0], 1)}
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def abouts(home: Path) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text()) | {"path": str(path.parent)}
        for path in (home / "bundles").glob("2*/run.json")
    ]


def alerts(home: Path) -> list[dict[str, Any]]:
    found = []
    for about in abouts(home):
        verdict = json.loads((Path(about["path"]) / "verdict.json").read_text())
        found.append({
            "home": home.name, "withdrawn": bool(about.get("withdrawn_at")), "command": about.get("command", [])[-3:],
            "class": verdict.get("class"), "summary": verdict.get("summary"),
        })  # fmt: skip
    return found


def hasty_package(hasty: float, scratch: Path) -> Path:
    """Where nsadiag is to be imported from: a copy whose watcher is so many times less patient."""
    if hasty == 1:
        return REPO
    shutil.copytree(REPO / "nsadiag", scratch / "nsadiag", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (text, form, value) in HASTE.items():
        path = scratch / "nsadiag" / name
        source = path.read_text()
        if text not in source:
            sys.exit(f"error: {name} has no {text!r}")
        path.write_text(source.replace(text, form.format(value / hasty)))
    return scratch


def left(homes: list[Path]) -> dict[str, object]:
    """Once every watcher has had the time to end: processes, files in memory, recordings."""
    until = time.monotonic() + WATCHERS_END_S
    while processes(homes) and time.monotonic() < until:
        time.sleep(1)
    recordings = [str(p.relative_to(h)) for h in homes for p in (h / "armed").rglob("*")] if homes else []
    return {
        "processes": processes(homes),
        "recordings": recordings[:20],
        "in_memory": [p.name for p in Path("/dev/shm").glob("nsadiag*")],
    }


def processes(homes: list[Path]) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_text().replace("\0", " ")
            if "nsadiag.commands.armed" in line and any(str(home) in line for home in homes):
                found.append(f"{path.parent.name} {line[-120:]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=8, help="runs at a time")
    parser.add_argument("--forkers", type=int, default=4, help="processes that import torch, and fork them")
    parser.add_argument("--homes", type=int, default=4, help="homes, each with a watcher")
    parser.add_argument(
        "--within", type=float, default=1e9, metavar="SECONDS", help="begin no run after that"
    )
    parser.add_argument(
        "--seconds", type=float, nargs=2, default=(6.0, 16.0), help="shortest and longest phase"
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hasty", type=float, default=1)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        place, _, home = options.child.partition(":")
        forker(options, int(place), Path(home))
        return
    scratch = Path(tempfile.mkdtemp(prefix="quiet-", dir="/dev/shm"))
    homes = [scratch / f"home{number}" for number in range(options.homes)]
    for home in homes:
        home.mkdir()
    package = hasty_package(options.hasty, scratch)
    service = subprocess.Popen([sys.executable, PROGRAMS / "service.py"], stdout=subprocess.PIPE, text=True)
    assert service.stdout
    env = {**os.environ, "QUIET_SERVICE": service.stdout.readline().strip(), "QUIET_BACKEND": "gloo",
           "PYTHONPATH": os.pathsep.join([str(package), str(PROGRAMS)])}  # fmt: skip
    until = str(time.time() + options.within)
    words = [sys.executable, __file__, *sys.argv[1:], "--until", until]
    children = [
        subprocess.Popen([*words, "--child", f"{n}:{homes[n % len(homes)]}"], env=env)
        for n in range(options.forkers)
    ]
    for each in children:
        each.wait()
    service.kill()
    service.wait()
    remains = left(homes)
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    told = [alert for home in homes for alert in alerts(home)]
    answer = {
        "runs": len(rows), "looked_at": sum(r["looked"] for r in rows), "shapes": len({r["shape"] for r in rows}), "failed": sum(r["exit_code"] != 0 for r in rows),
        "exit_codes": Counter(str(r["exit_code"]) for r in rows), "alerts": told, "standing": sum(not a["withdrawn"] for a in told),
        "left": remains, "load_max": max((r["load"] for r in rows), default=0),
    }  # fmt: skip
    print(json.dumps(answer, indent=1))
    if not told and not remains["processes"]:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()

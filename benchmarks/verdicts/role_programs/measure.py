#!/usr/bin/env python3
"""Jobs of several launchers, faulty and healthy: is the role, the class and the line right, and is a healthy one accused?

    python benchmarks/verdicts/role_programs/measure.py                  # every case, one after the other
    python benchmarks/verdicts/role_programs/measure.py --only files     # those in whose name this stands
    python benchmarks/verdicts/role_programs/measure.py --all            # found by `nsadiag attach --all`
    python benchmarks/verdicts/role_programs/measure.py --run            # by `nsadiag run` of a script that starts them all
    python benchmarks/verdicts/role_programs/measure.py --jobs 8         # so many at a time
    python benchmarks/verdicts/role_programs/measure.py --keep DIR       # where run directories stay
    ROLES_BACKEND=nccl python benchmarks/verdicts/role_programs/measure.py --only update   # trainer and engine on a GPU each

A trainer under torchrun, engines and, in some, an orchestrator are started by themselves. Some seconds after the stall has begun, or
a long quiet phase of a healthy one, `nsadiag attach` is given the pids of what was started. `nsadiag run` is given PATIENCE_S to
suspect a hang; a healthy job it watches through the quiet phase, and is then interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parent), str(HERE)]

import psutil  # noqa: E402
from cases import CASES, Case  # noqa: E402
from shared import Row, answer, collected, environment, percent  # noqa: E402

from nsadiag.evidence.layout import read_json  # noqa: E402

BACKEND = os.environ.get("ROLES_BACKEND", "gloo")
BEGINS_S, SETTLES_S = 120.0, 4.0
FIRST_LINE = re.compile(r"nsadiag: (suspected hang|.*[Ss]topping the job)")
PATIENCE_S, ENDS_S, QUIET_S = 15.0, 120.0, 35.0


def ports(names: list[str]) -> dict[str, int]:
    """Free ones, below those that the kernel gives to anybody who connects meanwhile."""
    found: dict[str, int] = {}
    while len(found) < len(names):
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found[names[len(found)]] = port
    return found


class Slow(BaseHTTPRequestHandler):
    """The world outside."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        time.sleep(60)


def lines_of(case: Case) -> list[list[str]]:
    """The command of each role."""
    lines = [[sys.executable, case.engine, engine] for engine in case.engines]
    ranks = 1 if BACKEND == "nccl" else 2  # NCCL wants a GPU for each: one is the engine's
    if not case.trainer:
        return lines
    lines.append(["torchrun", "--standalone", f"--nproc-per-node={ranks}", case.trainer])
    if case.trainer != "trainer.py":
        lines.append([sys.executable, "orchestrator.py"])
    return lines


def started(
    lines: list[list[str]], name: str, case: Case, shared: Path, outside: int
) -> list[subprocess.Popen[bytes]]:
    known = ports([*case.engines, "orchestrator", "weights", "weights0", "weights1"]) | {"outside": outside}
    env = environment(
        ROLES_SHARED=str(shared),
        ROLES_CASE=name,
        ROLES_PORTS=json.dumps(known),
        PYTHONPATH=str(HERE.parents[2]),
    )
    log = (shared / "output.log").open("wb")
    return [
        subprocess.Popen(
            line, cwd=HERE, env=env | gpu_of(line), stdout=log, stderr=log, start_new_session=True
        )
        for line in lines
    ]


def gpu_of(line: list[str]) -> dict[str, str]:
    """Each role sees one, of those that may be seen here."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    return {"CUDA_VISIBLE_DEVICES": seen[int("engine" in " ".join(line))]} if BACKEND == "nccl" else {}


def wrapped(case: Case, shared: Path) -> list[str]:
    """`nsadiag run` of a script that starts every role."""
    script = shared / "wrapper.sh"
    script.write_text("".join(f"{shlex.join(line)} &\n" for line in lines_of(case)) + "wait\n")
    ours = [
        sys.executable,
        "-m",
        "nsadiag",
        "run",
        "--out",
        str(shared / "run"),
        "--patience",
        str(PATIENCE_S),
    ]
    return [*ours, "--", "bash", str(script)]


def one(name: str, case: Case, outside: int, options: argparse.Namespace) -> Row:
    shared = Path(tempfile.mkdtemp(prefix=f"roles-{name}-"))
    lines = [wrapped(case, shared)] if options.run else lines_of(case)
    roles = started(lines, name, case, shared, outside)
    try:
        until = time.monotonic() + BEGINS_S
        plain = name.startswith("plain")
        while not (shared / "begun").exists() and time.monotonic() < until - (BEGINS_S - 12 if plain else 0):
            time.sleep(0.2)
        begun = (shared / "begun").exists() or plain
        began, first_line_s = time.monotonic(), None
        if options.run:
            said, first_line_s = watched(roles[0], case, shared)
        else:
            time.sleep(SETTLES_S)
            began = time.monotonic()
            targets = ["--all"] if options.all else [str(p.pid) for p in roles]
            if not case.trainer:
                targets = [f"--role={name}={p.pid}" for name, p in zip(case.engines, roles, strict=True)]
            ours = [sys.executable, "-m", "nsadiag", "attach", *targets, "--out", str(shared / "run")]
            said = subprocess.run(ours, capture_output=True, text=True, env=environment(), check=False).stderr
        first_s = time.monotonic() - began
        if options.keep and BACKEND == "nccl":
            evidence_of_nccl(roles, shared)
    finally:
        # torchrun starts each rank in a session of its own.
        family = [
            p.pid
            for role in roles
            if psutil.pid_exists(role.pid)
            for p in psutil.Process(role.pid).children(recursive=True)
        ]
        for pid in [*(role.pid for role in roles), *family]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for role in roles:
            role.wait()
        # Who is killed leaves what it shares.
        Path("/dev/shm", shared.name).unlink(missing_ok=True)
    row = row_of(name, case, shared, round(first_s, 1), begun, said) | {"first_line_s": first_line_s}
    if options.keep:
        sockets = shutil.ignore_patterns("*.ipc")
        shutil.copytree(shared, options.keep / name, dirs_exist_ok=True, ignore=sockets)
    shutil.rmtree(shared)
    return row


def evidence_of_nccl(roles: list[subprocess.Popen[bytes]], shared: Path) -> None:
    """What NCCL itself says, and native stacks, beside the run directory."""
    from nsadiag.agent.captures.gpu.nccl_ras import ask
    from nsadiag.deadlines.deadline import Deadline

    with contextlib.suppress(Exception):
        (shared / "ras.txt").write_text(ask("localhost", 28028, Deadline(7.0))[0])
    for role in roles:
        for process in psutil.Process(role.pid).children(recursive=True) or [psutil.Process(role.pid)]:
            line = ["py-spy", "dump", "--native", "--pid", str(process.pid)]
            said = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30).stdout
            (shared / f"native-{process.pid}.txt").write_text(said)


def watched(command: subprocess.Popen[bytes], case: Case, shared: Path) -> tuple[str, float | None]:
    """Until it has ended by itself, or a quiet phase has been watched; what it said, and when it first said what it waits for."""
    began, first_s = time.monotonic(), None
    while command.poll() is None and time.monotonic() < began + (ENDS_S if case.classes else QUIET_S):
        if first_s is None and FIRST_LINE.search((shared / "output.log").read_text(errors="replace")):
            first_s = round(time.monotonic() - began, 1)
        time.sleep(0.1)
    if command.poll() is None:
        command.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(ENDS_S)
    return (shared / "output.log").read_text(errors="replace"), first_s


def row_of(name: str, case: Case, shared: Path, first_s: float, begun: bool, said: str) -> Row:
    verdict = read_json(shared / "run" / "verdict.json", {})
    folder = next(
        (f for f in (shared / "run" / "roles", shared / "run") if (f / "roles.json").exists()), shared
    )
    processes = read_json(folder / "roles.json", {}).get("processes", [])
    role_of = {p["number"]: p["role"] for p in processes}
    if not role_of:
        # A verdict on ranks alone: all of them are the trainer's.
        role_of = dict.fromkeys(range(2), case.trainer.removesuffix(".py"))
    guilty = sorted({role_of.get(n, "?") for n in verdict.get("guilty_ranks", [])})
    place = verdict.get("where") or {}
    code = str(place.get("code") or "")
    faulty = bool(case.classes)
    row: Row = {
        "case": name, "begun": begun, "outcome": verdict.get("outcome"), "class": verdict.get("class"),
        "certainty": verdict.get("certainty"), "guilty": guilty, "line": f"{place.get('file', '')}:{place.get('line', '')}",
        "code": code, "summary": verdict.get("summary") or said[-300:], "first_s": first_s,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    if faulty:
        row["role_right"] = bool(guilty) and {re.sub(r" \d$", "", g) for g in guilty} <= {
            re.sub(r"\d$", "", r) for r in case.roles
        } | set(case.roles)
        row["class_right"] = row["class"] in case.classes
        row["line_right"] = any(text in code for text in case.code)
    else:
        row["accused"] = row["outcome"] not in ("healthy", "incomplete", "unknown", "slow")
        row["suspected"] = said.count("nsadiag: suspected hang")
    return row


def figures(rows: list[Row]) -> Row:
    faulty, healthy = [r for r in rows if "class_right" in r], [r for r in rows if "accused" in r]
    return {
        "faulty": len(faulty),
        "role_and_class": sum(r["role_right"] and r["class_right"] for r in faulty),
        "line": sum(r["line_right"] for r in faulty),
        "healthy": len(healthy),
        "accused": sum(r["accused"] for r in healthy),
        "attach_s": sorted(r["first_s"] for r in rows),
        "begun": percent(r["begun"] for r in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="EXPR")
    parser.add_argument("--all", action="store_true", help="by `nsadiag attach --all`")
    parser.add_argument(
        "--run", action="store_true", help="by `nsadiag run` of a script that starts every role"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    world = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=world.serve_forever, daemon=True).start()

    def measured():
        chosen = [
            (name, case)
            for name, case in CASES.items()
            if re.search(options.only, name) and case.backend in ("", BACKEND)
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            waiting = [
                pool.submit(one, name, case, world.server_address[1], options) for name, case in chosen
            ]
            for each in as_completed(waiting):
                row = each.result()
                print(row["case"], {k: v for k, v in row.items() if k != "case"}, file=sys.stderr, flush=True)
                yield row

    told = figures(collected(options.rows, measured()))
    answer(told, (f"{name:18}{value}" for name, value in told.items()), as_json=options.json)


if __name__ == "__main__":
    main()

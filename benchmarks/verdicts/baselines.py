"""What a person would have read without nsadiag: py-spy's stacks, torch's flight-recorder analysis, the error message.

Each answer is taken generously: what could be concluded counts as concluded. None of them names a class.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from shared import environment

from nsadiag.analysis.load import load_cell
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.user_code import is_user

BACKEND_TIMEOUT_S = 15
GIVE_UP_S = 75
WAITS = re.compile(r"/torch/distributed/|_engine_run_backward|/torch/autograd/")
# The scripts leave the time-out at half an hour; nothing else of theirs is changed.
SHORT_TIMEOUT = f"""
import datetime, runpy, sys
from torch.distributed import distributed_c10d
distributed_c10d._get_default_timeout = lambda backend: datetime.timedelta(seconds={BACKEND_TIMEOUT_S})
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CULPRITS = re.compile(r"Culprit rank (\d+)|missing ranks: \{([\d, ]+)\}")
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+)", re.DOTALL)
FRAME = re.compile(r'File "([^"]+)", line \d+, in \S+\n(?:\[rank\d+\]:)?\s*(.+)')


@dataclass(frozen=True, kw_only=True)
class Told:
    """Whether it named the guilty ranks, and showed the guilty line where one looks first; None: not asked."""

    ranks: bool | None = None
    line: bool | None = None


def _main_frames(threads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    main = next((t for t in threads if t.get("thread_name") == "MainThread"), None)
    return list((main or {}).get("frames", []))


def py_spy_alone(run: Path, guilty: tuple[int, ...], codes: tuple[str, ...]) -> Told:
    """`py-spy dump` of every rank: is the guilty line somebody's innermost, and does the guilty rank stand out?

    It does if it alone is not in torch's waiting, or if its line is not that of a majority.
    """
    cell = load_cell(run)
    stacks = {r.rank: _main_frames(r.last_capture.stacks) for r in cell.ranks if r.last_capture}
    innermost = {
        rank: next((f for f in frames if is_user(f["filename"])), None) for rank, frames in stacks.items()
    }
    lines = {rank: (f["filename"], f["line"]) if f else None for rank, f in innermost.items()}
    apart = {
        r for r, frames in stacks.items() if not any(WAITS.search(f["filename"] + f["name"]) for f in frames)
    }
    often = {line for line in lines.values() if list(lines.values()).count(line) > len(lines) / 2}
    odd = {rank for rank, line in lines.items() if often and line not in often}
    shown = {
        cell.sources.get(f["filename"], "").splitlines()[f["line"] - 1]
        for f in innermost.values()
        if f and 0 < f["line"] <= len(cell.sources.get(f["filename"], "").splitlines())
    }
    return Told(
        ranks=bool(guilty) and set(guilty) in (apart, odd),
        line=any(code in text for code in codes for text in shown) if codes else None,
    )


def flight_recorder_alone(run: Path, guilty: tuple[int, ...]) -> Told:
    """torchfrtrace on the dumps of the last look; those of gloo, at which it raises KeyError, are mended first."""
    dumps = {
        r.rank: read_json(c.flight_recorder) for r in RunDir(path=run).ranks() for c in r.captures()[-1:]
    }
    dumps = {rank: dump for rank, dump in dumps.items() if dump}
    _mend(dumps)
    with tempfile.TemporaryDirectory() as folder:
        for rank, dump in dumps.items():
            Path(folder, f"trace_{rank}").write_bytes(pickle.dumps(dump))
        said = _torchfrtrace(folder)
    named: set[int] = set()
    for culprit, missing in CULPRITS.findall(said):
        named |= {int(culprit)} if culprit else {int(n) for n in missing.split(",")}
    return Told(ranks=bool(guilty) and named == set(guilty))


def _mend(dumps: dict[int, dict[str, Any]]) -> None:
    """gloo's dumps have no frames, and in place of their groups one without a name."""
    members: dict[tuple[str, str], set[int]] = {}
    for rank, dump in dumps.items():
        for entry in dump.get("entries", []):
            entry.setdefault("frames", [])
            name, description = entry["process_group"]
            # Who is in a group is read off who used it; everyone is in the default group.
            members.setdefault((name, description), set()).update(
                dumps if description == "default_pg" else {rank}
            )
    for dump in dumps.values():
        for (name, description), ranks in members.items():
            listed = {"name": name, "desc": description, "ranks": str(sorted(ranks))}
            dump.setdefault("pg_config", {}).setdefault(name, listed)


def _torchfrtrace(folder: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "-p", "trace_", folder]
    said = ""
    for more in ([], ["--allow-incomplete-ranks"]):
        try:
            done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            continue
        said = done.stdout + done.stderr
        if done.returncode == 0:
            break
    return said


def error_message(command: list[str], guilty: tuple[int, ...], codes: tuple[str, ...]) -> Told:
    """Plain torchrun with a short time-out: whom its summary blames, and the first traceback's innermost user line."""
    with tempfile.TemporaryDirectory() as folder:
        wrapper = Path(folder, "short_timeout.py")
        wrapper.write_text(SHORT_TIMEOUT)
        text = _output_of([*command[:-1], str(wrapper), command[-1]])
    blamed = ROOT_CAUSE.search(text)
    first = text.partition("Traceback (most recent call last)")[2].partition(
        "Traceback (most recent call last)"
    )[0]
    own = [code for file, code in FRAME.findall(first) if is_user(file) and "short_timeout" not in file]
    return Told(
        ranks=bool(guilty) and blamed is not None and guilty == (int(blamed[1]),),
        line=bool(own) and any(code in own[-1] for code in codes) if codes else None,
    )


def _output_of(command: list[str]) -> str:
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        job = psutil.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=output)
        try:
            job.wait(GIVE_UP_S)
        except psutil.TimeoutExpired:
            # torchrun gives its workers sessions of their own: each has to be ended by itself.
            for process in [*job.children(recursive=True), job]:
                process.kill()
            job.wait()
        output.seek(0)
        return output.read()

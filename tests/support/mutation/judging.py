"""Judges broken directories one after the other in one process, and says what became of each."""

from __future__ import annotations

import random
import re
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dump_maker import Job, write_dumps

from nsadiag.analysis.verdict import judge_directory
from nsadiag.analysis.verdict import judge_evidence as judge_external
from nsadiag.errors import NsadiagError
from nsadiag.reports import load_report
from nsadiag.reports.formats.registry import REPORTERS, write_reports

from ..recordings.golden import archive_of, recorded, unpack
from .broken import broken, restored

LIMIT_S = 10  # of CPU
MOST_MIB = 512
FORMATS = tuple(REPORTERS)
STACKS = """Process 4711: /venv/bin/python -u train.py --rank 0
Python v3.12.3 (/usr/bin/python3.12)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    train (train.py:52)
    <module> (train.py:71)
"""
FAULTS = """Thread 0x00007f1a40a5a740 (most recent call first):
  File "/job/checkpoints.py", line 40 in save
  File "/job/train.py", line 71 in <module>
"""
LOG = """[rank1]:[E816 01:45:40.183 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.
Traceback (most recent call last):
  File "/job/train.py", line 71, in <module>
    train()
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x128 and 64x10)
"""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """One directory: what was broken in it, and what came of it: "" where all is well."""

    what: str
    came: str


def quick(count: int) -> list[str]:
    """The smallest recordings, which are judged in no time: what is tried is how they are read."""
    return sorted(recorded(), key=lambda name: archive_of(name).stat().st_size)[:count]


def make_dumps(folder: Path) -> Path:
    """What somebody might send who does not have nsadiag."""
    write_dumps(folder, Job(ranks=3, entries=40, culprit=1))
    write_dumps(folder / "json", Job(ranks=2, entries=40, culprit=1, form="json", prefix="fr_rank_"))
    for name, text in (("py_spy_rank0.txt", STACKS), ("faults_rank1.txt", FAULTS), ("rank1.log", LOG)):
        (folder / name).write_text(text)
    for path in folder.rglob("nccl_trace_rank_*"):
        path.rename(path.with_suffix(".pickle"))
    return folder


def judged(names: list[str], rounds: int, seed: int, *, dumps: float = 0.1) -> Iterator[Broken]:
    """So many directories, made of these recordings and, for a share of them, of dumps."""
    rng, home = random.Random(seed), Path(tempfile.mkdtemp(prefix="broken-"))
    outside = home / "outside" / "keep.txt"
    outside.parent.mkdir()
    outside.write_text("not yours")
    whole = {name: unpack(archive_of(name), home / "whole" / name).path for name in names}
    received = make_dumps(home / "received")
    try:
        for number in range(rounds):
            foreign = rng.random() < dumps
            source = received if foreign else whole[names[number % len(names)]]
            with restored(home / "run", source):
                if not foreign and rng.random() < 0.3:
                    judge_directory(home / "run")  # with the verdict and reports of who sent it
                what = f"{source.name}/{broken(rng, home / 'run', outside)}"
                before = _state(outside.parent)
                came = _came(home / "run", FORMATS[number % len(FORMATS)], foreign=foreign)
                if _state(outside.parent) != before:
                    came = came or "a file outside was touched"
            yield Broken(what=what, came=came)
            for moved in outside.parent.iterdir():
                if moved.is_dir():
                    shutil.rmtree(moved)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def peak_mib() -> int:
    """Of this process, and of those that read dumps for it."""
    # Not RUSAGE_SELF: that of a process which was started by a larger one begins with its parent's.
    own = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert own is not None
    return max(int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10


def _came(run: Path, format_: str, *, foreign: bool) -> str:
    """What `analyze` and `report` would come to: nothing, or what went wrong, and where."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        if foreign:
            judge_external(run)
        else:
            judge_directory(run)
            write_reports(run)
            REPORTERS[format_](load_report(run))
    except NsadiagError:
        return ""
    except OSError as error:
        # A folder stands where a report belongs, or a link to one: an error for the person, and no traceback.
        writing = any(frame.name == "replace_private" for frame in traceback.extract_tb(error.__traceback__))
        return "" if writing else f"{error!r} while reading"
    except TimeoutError:
        return f"more than {LIMIT_S} s of CPU"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno} {frame.name}: {error}"[
            :200
        ]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return ""


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
    }

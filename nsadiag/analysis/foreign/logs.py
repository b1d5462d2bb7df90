"""What logs say: tracebacks, ends that torchrun saw, time-outs of NCCL's watchdog and of gloo, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# torchrun, torch.distributed and NCCL put these before lines of several ranks in one log.
PREFIX = re.compile(r"^\[(?:rank|default)(?P<rank>\d+)\]:? ?")
TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
WATCHDOG = re.compile(
    r"(?:\[PG ID \S+ PG GUID (?P<guid>[^\s(]+)(?:\((?P<desc>[^)]*)\))? )?\[?Rank (?P<rank>\d+)\]\s+"
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+), "
    r"NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+), Timeout\(ms\)=(?P<timeout>\d+)\) ran for (?P<ran>\d+)"
)
BARRIER = re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms")
EXITED = re.compile(r"exitcode:? *:? *(?P<code>-?\d+)\)? .*?\(?pid: (?P<pid>\d+)\)")
# torchrun's table of failures.
FAILURE = re.compile(
    r"\[(?P<n>\d+)\]:\s*\n\s+time\s*: (?P<time>\S+)\s*\n\s+host\s*: (?P<host>.*)\n\s+rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*\n"
    r"\s+exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$", re.MULTILINE)
OPS = {"ALLREDUCE": "all_reduce", "BROADCAST": "broadcast", "ALLGATHER": "all_gather", "BARRIER": "barrier",
       "REDUCE_SCATTER": "reduce_scatter", "ALLTOALL": "all_to_all", "SEND": "send", "RECV": "recv",
       "_ALLGATHER_BASE": "_all_gather_base", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Raised:
    """One traceback."""

    rank: int | None
    type: str
    message: str
    frames: tuple[dict[str, Any], ...]  # outermost first
    line: int  # of the log, where it begins


@dataclass(frozen=True, kw_only=True)
class TimedOut:
    """NCCL's watchdog, of one collective."""

    rank: int
    group: str
    seq: int
    op: str
    elements: int
    ran_s: float
    line: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A rank's end as torchrun saw it."""

    rank: int
    code: int
    pid: int
    t_s: float | None
    line: int


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """All of one log."""

    raised: tuple[Raised, ...] = ()
    timed_out: tuple[TimedOut, ...] = ()
    ended: tuple[Ended, ...] = ()
    never_came: tuple[int, ...] = ()  # to a monitored barrier
    never_came_line: int = 0
    ranks: frozenset[int] = field(default_factory=frozenset)  # that wrote in it
    lines: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.raised or self.timed_out or self.ended or self.never_came)


def read_log(text: str) -> LogFacts:
    """Never raises, whatever the text."""
    lines = text.splitlines()
    ranks = {int(m["rank"]) for line in lines if (m := PREFIX.match(line))}
    barrier = [(n, m) for n, line in enumerate(lines, 1) if (m := BARRIER.search(line))]
    return LogFacts(
        raised=tuple(_tracebacks(lines)),
        timed_out=tuple(_timed_out(lines)),
        ended=tuple(_ended(text)),
        never_came=tuple(sorted({int(r) for _, m in barrier for r in re.findall(r"\d+", m["ranks"])})),
        never_came_line=barrier[0][0] if barrier else 0,
        ranks=frozenset(ranks),
        lines=len(lines),
    )


def _tracebacks(lines: list[str]) -> Iterator[Raised]:
    """Each to its last exception: those before it in a chain are what it was raised from."""
    open_: dict[int | None, tuple[int, list[dict[str, Any]]]] = {}
    for number, line in enumerate(lines, 1):
        rank, said = _stripped(line)
        if TRACEBACK in said:
            open_[rank] = (number, [])
        elif rank in open_:
            begin, frames = open_[rank]
            frame, raised = FRAME.match(said), RAISED.match(said)
            if frame:
                frames.append(
                    {
                        "file": frame["file"],
                        "line": int(frame["line"]),
                        "function": frame["function"],
                        "code": "",
                    }
                )
            elif said.startswith("    ") and frames and not frames[-1]["code"] and said.strip(" ^~"):
                frames[-1]["code"] = said.strip()
            elif raised and frames and not said.startswith(" "):
                del open_[rank]
                yield Raised(
                    rank=rank,
                    type=raised["type"].rpartition(".")[2],
                    message=raised["message"] or "",
                    frames=tuple(frames),
                    line=begin,
                )


def _stripped(line: str) -> tuple[int | None, str]:
    prefix = PREFIX.match(line)
    return (int(prefix["rank"]), line[prefix.end() :]) if prefix else (None, line)


def _timed_out(lines: list[str]) -> Iterator[TimedOut]:
    for number, line in enumerate(lines, 1):
        found = WATCHDOG.search(line)
        if found:
            rank = PREFIX.match(line)
            yield TimedOut(
                rank=int(rank["rank"]) if rank else int(found["rank"]),
                group=found["desc"] or found["guid"] or "default_pg",
                seq=int(found["seq"]),
                op=OPS.get(found["op"], found["op"].lower()),
                elements=int(found["numel_in"]),
                ran_s=int(found["ran"]) / 1e3,
                line=number,
            )


def _ended(text: str) -> Iterator[Ended]:
    for found in FAILURE.finditer(text):
        yield Ended(
            rank=int(found["rank"]),
            code=int(found["code"]),
            pid=int(found["pid"]),
            t_s=_seconds(found["time"]),
            line=text.count("\n", 0, found.start()) + 1,
        )


def _seconds(time: str) -> float | None:
    """torchrun writes `2026-11-21_13:45:01`."""
    try:
        return datetime.strptime(time, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return None

"""Tracebacks, ends that torchrun saw, and timeouts in logs, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from nsadiag.analysis.ingest.watchdog_reports import TimedOut, timed_out
from nsadiag.evidence.documents.exceptions import Cause, TracebackFrame

# torchrun, torch.distributed and NCCL put these before lines of several ranks in one log.
PREFIX = re.compile(r"^(?:\[(?:rank|default)(?P<rank>\d{1,9})\]:? ?)+")
# Colours and moves of the cursor, which some loggers write into files too.
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
TRACEBACK = "Traceback (most recent call last):"
CHAINS = {
    "The above exception was the direct cause of the following exception:": True,
    "During handling of the above exception, another exception occurred:": False,
}
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
BARRIER = re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms")
# torchrun's table of failures.
FAILURE = re.compile(
    r"\[(?P<n>\d+)\]:\s*\n\s+time\s*: (?P<time>\S+)\s*\n\s+host\s*: (?P<host>.*)\n\s+rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*\n"
    r"\s+exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
# NCCL's watchdog, where a CUDA error ends the process: its own words, before "Aborted".
ENDED_BY = re.compile(r"Process group watchdog thread terminated with exception: (?P<message>.+)")
WORLD_SIZE = re.compile(r"\bworld[ _]size\b[\s\"'=:(]{1,4}(?P<size>\d{1,6})\b", re.IGNORECASE)
LAUNCHERS = "ChildFailedError"  # torchrun's own, which says that some rank has failed
FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """One traceback of a log, with those from which its exception came."""

    rank: int | None
    line: int  # of the log, where it begins
    exception: Cause


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

    raised: tuple[Traceback, ...] = ()
    timed_out: tuple[TimedOut, ...] = ()
    ended: tuple[Ended, ...] = ()
    never_came: tuple[int, ...] = ()  # to a monitored barrier
    never_came_line: int = 0
    ranks: Mapping[int, str] = field(default_factory=dict)  # that wrote in it, with their lines
    world_size: int = 0  # as some line says
    lines: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.raised or self.timed_out or self.ended or self.never_came)


def read_log(text: str) -> LogFacts:
    """Never raises, whatever the text."""
    text = ESCAPES.sub("", text)
    lines = text.splitlines()
    ranks: dict[int, list[str]] = {}
    for rank, said in map(_stripped, lines):
        if rank is not None:
            ranks.setdefault(rank, []).append(said)
    barrier = [(n, m) for n, line in enumerate(lines, 1) if (m := BARRIER.search(line))]
    return LogFacts(
        raised=(*_errors_of_watchdogs(lines), *_tracebacks(lines)),
        timed_out=tuple(timed_out(text)),
        ended=tuple(_ended(text)),
        never_came=tuple(sorted({int(r) for _, m in barrier for r in re.findall(r"\d+", m["ranks"])})),
        never_came_line=barrier[0][0] if barrier else 0,
        ranks={rank: "\n".join(own) for rank, own in ranks.items()},
        world_size=max((int(m["size"]) for m in WORLD_SIZE.finditer(text)), default=0),
        lines=len(lines),
    )


def _errors_of_watchdogs(lines: list[str]) -> Iterator[Traceback]:
    """Errors of a device that NCCL's watchdog met: they end the rank, without a traceback."""
    for number, line in enumerate(lines, 1):
        rank, said = _stripped(line)
        if (found := ENDED_BY.search(said)) and "timeout" not in found["message"].lower():
            yield Traceback(
                rank=rank, line=number, exception=Cause(type="RuntimeError", message=found["message"].strip())
            )


def _tracebacks(lines: list[str]) -> list[Traceback]:
    """Each with what it was raised from as its cause; the launcher's own left out."""
    open_: dict[int | None, tuple[int, list[TracebackFrame]]] = {}
    causes: dict[int | None, Cause] = {}
    found: list[Traceback] = []
    for number, line in enumerate(lines, 1):
        rank, said = _stripped(line)
        if TRACEBACK in said:
            open_[rank] = (number, [])
        elif rank in open_:
            if raised := _read_line(said, open_[rank][1]):
                begin, frames = open_.pop(rank)
                exception = Cause(
                    type=raised["type"].rpartition(".")[2],
                    message=raised["message"] or "",
                    frames=tuple(frames),
                    cause=causes.pop(rank, None),
                )
                if exception.type != LAUNCHERS:
                    found.append(Traceback(rank=rank, line=begin, exception=exception))
        elif said.strip() in CHAINS and (before := [each for each in found if each.rank == rank]):
            found.remove(before[-1])
            causes[rank] = replace(before[-1].exception, meant=CHAINS[said.strip()])
    return found


def _read_line(said: str, frames: list[TracebackFrame]) -> re.Match[str] | None:
    """A frame, its code, or the exception itself, which ends the traceback."""
    frame = FRAME.match(said)
    if frame:
        file, line_number, function = frame["file"], int(frame["line"]), frame["function"]
        frames.append(TracebackFrame(file=file, line=line_number, function=function))
    elif said.startswith("    ") and frames and not frames[-1].code and said.strip(" ^~"):
        frames[-1] = replace(frames[-1], code=said.strip())
    elif frames and not said.startswith(" "):
        return RAISED.match(said)
    return None


def _stripped(line: str) -> tuple[int | None, str]:
    prefix = PREFIX.match(line)
    return (int(prefix["rank"]), line[prefix.end() :]) if prefix else (None, line)


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

"""Reports of NCCL's watchdog in a log: collectives that timed out, and where they were called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, LogLine, Speaker, keep
from nsadiag.evidence.documents.exceptions import TracebackFrame
from nsadiag.evidence.messages import CollectiveStack

PREFIX = re.compile(r"\[(?:rank|default)(?P<rank>\d{1,9})\]:")
TIMED_OUT = re.compile(
    r"Rank (?P<rank>\d{1,9})\] +Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d{1,19}), )?"
    r"OpType=(?P<op>\w+)(?:, TensorShape=\[[\d, ]*\])?(?:, NumelIn=(?P<numel>\d{1,20}), NumelOut=(?P<out>\d{1,20}))?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d{1,15}))?\)(?: ran for (?P<ran>\d{1,15}) milliseconds)?"
)
# Of several versions: [PG 1 Rank 0], [PG 0 (default_pg) Rank 7], [PG ID 0 PG GUID 0(default_pg) Rank 1].
DETECTED = re.compile(
    r"\[PG (?:ID )?(?P<group>[^\s\]]+)(?: PG GUID (?P<guid>[^\s(]+))? ?(?:\((?P<description>[^)]*)\))? Rank (?P<rank>\d{1,9})\].{0,300}?"
    r"at (?:NCCL )?work(?: sequence id)?: (?P<seq>\d{1,19})(?:,| PG status:) last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,19}), "
    r"(?:last started (?:NCCL )?work: (?P<started>-?\d{1,19}), )?last completed (?:NCCL )?work: (?P<completed>-?\d{1,19})"
)
# A message of which the rest is in the next line, where it was copied from a narrow screen.
BEGUN = re.compile(
    r"Rank \d{1,9}\] +Watchdog\b(?!.*(?:\) ran for \d+ milliseconds|OpType=\w+[^)]*\)))|Rank \d{1,9}\] .*(?:detected|Timeout at)\b(?!.*last completed (?:NCCL )?work: -?\d)"
)
BEGINNINGS = ("Watchdog", "Timeout at", "detected")
MOST_PARTS = 4
LONGEST_BEGUN = 2_000  # characters: screens are narrower
STACK = "Stack trace of the failed collective:"
STACK_FRAME = re.compile(r"^\s*#(?P<number>\d{1,4}) (?P<name>.+?) from (?P<file>.+):(?P<line>\d{1,7})\s*$")
OPS = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
    "_ALLGATHER_BASE": "_all_gather_base", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
}  # fmt: skip
MOST_AHEAD = 10_000
MOST_ELEMENTS = 2**62
MOST_BETWEEN = 200  # lines of others, within a stack
MOST_STACK = 500  # frames
DEFAULT = "default_pg"


@dataclass(frozen=True, kw_only=True)
class TimedOut:
    """The first collective of a group that took too long on a rank."""

    rank: int
    seq: int
    op: str
    elements: int | None
    group: str  # its description, where it has one
    enqueued: int  # the last number that the rank issued in the group
    line: int
    ran_s: float | None = None
    limit_s: float | None = None  # the timeout that was set
    output: int | None = None  # elements of the result
    completed: int | None = None  # the last number that is complete on the rank
    group_rank: int | None = None  # its number in the group, where the line's prefix has the global one
    guid: str = ""  # the group's own name, which no other group has
    frames: tuple[TracebackFrame, ...] = ()  # where it was called, outermost first
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class _Said:
    """The numbers of one message, without its line, which may be long."""

    line: int
    time: str
    rank: int
    is_global: bool  # the rank stands before the line, and not in its brackets alone
    values: dict[str, str | None]

    def number(self, name: str) -> int | None:
        text = self.values[name]
        return int(text) if text else None


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """A stack, of which more frames may come."""

    line: int
    time: str
    speaker: Speaker
    frames: list[TracebackFrame]


class Timeouts:
    """Those of each rank, and the stacks that the watchdog prints of them."""

    def __init__(self) -> None:
        self._complaints: list[_Said] = []
        self._groups: dict[tuple[int, int], list[_Said]] = {}
        self._told = 0
        self._begun: LogLine | None = None
        self._parts = 0
        self._stacks: list[_Stack] = []
        self._open: list[_Stack] = []

    @property
    def is_busy(self) -> bool:
        """Whether frames of a stack may come, or the rest of a message."""
        return bool(self._open) or self._begun is not None

    def read(self, line: LogLine) -> bool:
        """Take the next line of the log; returns whether it is one of the watchdog's."""
        if self._open and self._frame(line):
            return True
        line = self._whole(line)
        text = line.text
        is_report = self._begun is not None
        # Progress bars end in no newline, and messages of several ranks may share a line.
        if "Watchdog caught" in text:
            is_report = True
            for match in TIMED_OUT.finditer(text):
                keep(self._complaints, _said(line, match))
        if "last enqueued" in text:
            for match in DETECTED.finditer(text):
                is_report = True
                if self._told < MOST_FACTS:
                    self._told += 1
                    said = _said(line, match)
                    self._groups.setdefault((said.rank, int(match["seq"])), []).append(said)
        if STACK in text and len(self._stacks) < MOST_FACTS:
            opened = _Stack(line=line.number, time=line.prefix.time, speaker=line.speaker, frames=[])
            self._open = [*self._open[-63:], opened]
            self._stacks.append(opened)
            is_report = True
        return is_report

    def _whole(self, line: LogLine) -> LogLine:
        """The line, or with it the one that had begun a message and not ended it."""
        begun, self._begun = self._begun, None
        if begun and line.number == begun.number + self._parts:
            line = replace(begun, text=begun.text + line.said, said=begun.said + line.said)
        else:
            self._parts = 0
        is_short = len(line.text) < LONGEST_BEGUN
        if is_short and any(word in line.text for word in BEGINNINGS) and BEGUN.search(line.text):
            self._parts += 1
            self._begun = line if self._parts < MOST_PARTS else None
        return line

    def _frame(self, line: LogLine) -> bool:
        frame = STACK_FRAME.match(line.said)
        if not frame:
            self._open = [each for each in self._open if line.number - each.line < MOST_BETWEEN]
            return False
        for opened in self._open:
            # The frames are lines of one message: only the first has the prefix of its rank.
            if len(opened.frames) == int(frame["number"]) < MOST_STACK:
                opened.frames.append(
                    TracebackFrame(file=frame["file"], line=int(frame["line"]), function=frame["name"])
                )
                return True
        return False

    def stacks(self) -> Iterator[tuple[Speaker, CollectiveStack]]:
        """The calls of collectives that timed out, each with its process."""
        for each in self._stacks:
            if each.frames:
                stack = CollectiveStack(line=each.line, time=each.time, frames=tuple(each.frames[::-1]))
                yield each.speaker, stack

    def found(self) -> Iterator[TimedOut]:
        """In each group the first that a rank did not finish: the others stand behind it."""
        first: dict[tuple[int, str], TimedOut] = {}
        for each in self._complaints:
            told = _told_behind(each.line, self._groups.get((each.rank, each.number("seq") or 0), []))
            one = _timed_out(each, told, self._frames_of(each.rank, each.line))
            key = one.rank, one.guid or one.group
            if key not in first or one.seq < first[key].seq:
                first[key] = one
        yield from first.values()

    def _frames_of(self, rank: int, line: int) -> tuple[TracebackFrame, ...]:
        mine = (s for s in self._stacks if s.line > line and s.speaker.rank == rank and s.frames)
        first = next(mine, None)
        return tuple(first.frames[::-1]) if first else ()


def _said(line: LogLine, match: re.Match[str]) -> _Said:
    """The global rank stands before the line; in brackets is that in the group."""
    before = PREFIX.findall(match.string[: match.start()])
    speaker = line.speaker
    known = int(before[-1]) if before else None if speaker.is_label else speaker.rank
    return _Said(
        line=line.number,
        time=line.prefix.time,
        rank=int(match["rank"]) if known is None else known,
        is_global=bool(before),
        values=match.groupdict(),
    )


def _told_behind(line: int, told: list[_Said]) -> _Said | None:
    """The first line with the group's numbers behind this one: two groups may be at the same number."""
    return next((each for each in told if each.line >= line), told[0] if told else None)


def _timed_out(said: _Said, told: _Said | None, frames: tuple[TracebackFrame, ...]) -> TimedOut:
    seq, op = said.number("seq") or 0, str(said.values["op"])
    ran, limit = said.number("ran"), said.number("limit")
    enqueued = told.number("enqueued") if told else None
    return TimedOut(
        rank=said.rank,
        seq=seq,
        op=OPS.get(op, op.lower()),
        elements=_count(said.number("numel")),
        output=_count(said.number("out")),
        group=_group(told),
        guid=str(told.values["guid"] or told.values["group"]) if told else "",
        enqueued=min(max(seq if enqueued is None else enqueued, seq), seq + MOST_AHEAD),
        completed=told.number("completed") if told else None,
        group_rank=said.number("rank") if said.is_global else None,
        line=said.line,
        ran_s=None if ran is None else ran / 1000,
        limit_s=None if limit is None else limit / 1000,
        frames=frames,
        time=said.time,
    )


def _count(elements: int | None) -> int | None:
    """The size; None of a batch of transfers, where NCCL prints -1 as an unsigned number."""
    return elements if elements is None or elements < MOST_ELEMENTS else None


def _group(told: _Said | None) -> str:
    if told is None or told.values["group"] == "0":
        return DEFAULT
    description = told.values["description"]
    return description if description not in (None, "", "undefined") else f"group {told.values['group']}"

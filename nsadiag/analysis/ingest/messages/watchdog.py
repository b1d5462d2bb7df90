"""Reports of NCCL's watchdog in a log: collectives that timed out, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, LogLine

PREFIX = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]:")
TIMED_OUT = re.compile(
    r"Rank (?P<rank>\d+)\] +Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), "
    r"OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+), NumelOut=(?P<output>\d+))?, Timeout\(ms\)=\d+\)(?: ran for (?P<ran>\d+) milliseconds)?"
)
# Of several versions: [PG 1 Rank 0], [PG 0 (default_pg) Rank 7], [PG ID 0 PG GUID 0(default_pg) Rank 1].
DETECTED = re.compile(
    r"\[PG (?:ID )?(?P<group>\S+)(?: PG GUID (?P<guid>[^\s(]+))? ?(?:\((?P<description>[^)]*)\))? Rank (?P<rank>\d+)\].*"
    r"at (?:NCCL )?work(?: sequence id)?: (?P<seq>\d+)(?:,| PG status:) last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
OPS = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
    "_ALLGATHER_BASE": "_all_gather_base", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
}  # fmt: skip
MOST_AHEAD = 10_000
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
    output: int | None = None  # elements of the result
    completed: int | None = None  # the last number that is complete on the rank
    group_rank: int | None = (
        None  # the rank's number in the group, where the line's prefix has the global one
    )
    guid: str = ""  # the group's own name, which no other group has


class Timeouts:
    """One a rank and group that it complains of, of the lowest number: the others stand behind it."""

    def __init__(self) -> None:
        self._complaints: list[_Complaint] = []
        self._groups: dict[tuple[int, int], list[tuple[int, re.Match[str]]]] = {}
        self._told = 0

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        text = line.text
        # Progress bars end in no newline, and messages of several ranks may share a line.
        if "Watchdog caught" in text:
            for match in TIMED_OUT.finditer(text):
                if len(self._complaints) < MOST_FACTS:
                    named = bool(PREFIX.search(text))
                    self._complaints.append(
                        _Complaint(rank=_rank(text, match), line=line.number, match=match, named=named)
                    )
        if "last enqueued" in text:
            for match in DETECTED.finditer(text):
                if self._told < MOST_FACTS:
                    self._told += 1
                    told = self._groups.setdefault((_rank(text, match), int(match["seq"])), [])
                    told.append((line.number, match))

    def found(self) -> Iterator[TimedOut]:
        """Those of the log so far."""
        first: dict[tuple[int, str], TimedOut] = {}
        for each in self._complaints:
            told = _told_behind(each.line, self._groups.get((each.rank, int(each.match["seq"])), []))
            one = _timed_out(each, told)
            key = one.rank, one.guid or one.group
            if key not in first or one.seq < first[key].seq:
                first[key] = one
        yield from first.values()


@dataclass(frozen=True, kw_only=True)
class _Complaint:
    rank: int
    line: int
    match: re.Match[str]
    named: bool  # whether the global rank stands before the line


def _told_behind(line: int, detected: list[tuple[int, re.Match[str]]]) -> re.Match[str] | None:
    """The first line with the group's numbers behind this one: two groups may be at the same number."""
    behind = [match for number, match in detected if number >= line] or [match for _, match in detected]
    return behind[0] if behind else None


def _timed_out(complaint: _Complaint, told: re.Match[str] | None) -> TimedOut:
    match = complaint.match
    seq = int(match["seq"])
    return TimedOut(
        rank=complaint.rank,
        seq=seq,
        op=OPS.get(match["op"], match["op"].lower()),
        elements=int(match["numel"]) if match["numel"] else None,
        output=int(match["output"]) if match["output"] else None,
        group=_group(told),
        guid=(told["guid"] or told["group"]) if told else "",
        enqueued=min(max(int(told["enqueued"]) if told else seq, seq), seq + MOST_AHEAD),
        completed=int(told["completed"]) if told else None,
        group_rank=int(match["rank"]) if complaint.named else None,
        line=complaint.line,
        ran_s=int(match["ran"]) / 1000 if match["ran"] else None,
    )


def _rank(line: str, match: re.Match[str]) -> int:
    """The global rank stands before the line; in brackets is that in the group."""
    before = PREFIX.findall(line[: match.start()])
    return int(before[-1]) if before else int(match["rank"])


def _group(told: re.Match[str] | None) -> str:
    if told is None or told["group"] == "0":
        return DEFAULT
    description = told["description"]
    return description if description not in (None, "", "undefined") else f"group {told['group']}"

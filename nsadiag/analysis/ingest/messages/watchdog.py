"""Reports of NCCL's watchdog in a log: collectives that timed out, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, LogLine

PREFIX = re.compile(r"\[(?:rank|default)(?P<rank>\d+)\]:")
TIMED_OUT = re.compile(
    r"Rank (?P<rank>\d+)\] +Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), "
    r"OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+), NumelOut=\d+)?, Timeout\(ms\)=\d+\)(?: ran for (?P<ran>\d+) milliseconds)?"
)
# Of several versions: [PG 1 Rank 0], [PG 0 (default_pg) Rank 7], [PG ID 0 PG GUID 0(default_pg) Rank 1].
DETECTED = re.compile(
    r"\[PG (?:ID )?(?P<group>\S+)(?: PG GUID [^\s(]+)? ?(?:\((?P<description>[^)]*)\))? Rank (?P<rank>\d+)\].*"
    r"at work(?: sequence id)?: (?P<seq>\d+)(?:,| PG status:) last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), "
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
    """One rank's first collective that took too long."""

    rank: int
    seq: int
    op: str
    elements: int | None
    group: str
    enqueued: int
    line: int
    ran_s: float | None = None


class Timeouts:
    """One a rank that complains, of the lowest number: the others stand behind it."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, re.Match[str]]] = {}
        self._groups: dict[tuple[int, int], re.Match[str]] = {}

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        text = line.text
        # Progress bars end in no newline, and messages of several ranks may share a line.
        if "Watchdog caught" in text:
            for match in TIMED_OUT.finditer(text):
                rank = _rank(text, match)
                before = self._found.get(rank)
                if before is None and len(self._found) >= MOST_FACTS:
                    continue
                if before is None or int(match["seq"]) < int(before[1]["seq"]):
                    self._found[rank] = line.number, match
        if "last enqueued" in text and len(self._groups) < MOST_FACTS:
            for match in DETECTED.finditer(text):
                self._groups.setdefault((_rank(text, match), int(match["seq"])), match)

    def found(self) -> Iterator[TimedOut]:
        """Those of the log so far."""
        for rank, (number, match) in self._found.items():
            seq = int(match["seq"])
            told = self._groups.get((rank, seq))
            yield TimedOut(
                rank=rank,
                seq=seq,
                op=OPS.get(match["op"], match["op"].lower()),
                elements=int(match["numel"]) if match["numel"] else None,
                group=_group(told),
                enqueued=min(max(int(told["enqueued"]) if told else seq, seq), seq + MOST_AHEAD),
                line=number,
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

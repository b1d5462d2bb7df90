"""Reports of NCCL's watchdog in a log: collectives that timed out, by rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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


def timed_out(text: str) -> Iterator[TimedOut]:
    """One a rank that complains, of the lowest number: the others stand behind it."""
    found: dict[int, tuple[int, re.Match[str]]] = {}
    groups: dict[tuple[int, int], re.Match[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        # Progress bars end in no newline, and messages of several ranks may share a line.
        for match in TIMED_OUT.finditer(line):
            rank = _rank(line, match)
            if rank not in found or int(match["seq"]) < int(found[rank][1]["seq"]):
                found[rank] = number, match
        for match in DETECTED.finditer(line):
            groups.setdefault((_rank(line, match), int(match["seq"])), match)
    for rank, (number, match) in found.items():
        seq = int(match["seq"])
        told = groups.get((rank, seq))
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

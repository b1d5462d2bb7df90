"""TCP connections between ranks, as the kernel reports both ends."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.kernel import Descriptor

MAPPED = "::ffff:"  # an IPv4 address as IPv6 sockets show it


@dataclass(frozen=True, kw_only=True)
class Link:
    """Bytes that a rank has sent and that stayed unacknowledged between two snapshots."""

    rank: int
    peer: int | None  # None: on another machine, or of no rank
    to: str
    bytes: int
    source: str


def stalled_links(cell: CellEvidence) -> list[Link]:
    """Connections with the same unacknowledged bytes in the last two snapshots."""
    owners = {(_plain(row.local), _plain(row.peer)): rank.rank for rank in cell.ranks for row in _last(rank)}
    found = []
    for rank in cell.ranks:
        before = {(row.local, row.peer): row for row in _last(rank, back=2)}
        for row in _last(rank):
            earlier = before.get((row.local, row.peer))
            if row.unsent and earlier and earlier.unsent == row.unsent:
                found.append(
                    Link(
                        rank=rank.rank,
                        peer=owners.get((_plain(row.peer), _plain(row.local))),
                        to=row.peer,
                        bytes=row.unsent,
                        source=f"{rank.captures[-1].source}/proc.json#fds",
                    )
                )
    return found


def _last(rank: RankEvidence, *, back: int = 1) -> list[Descriptor]:
    """The rank's established connections in the last snapshot, or the one `back` before."""
    shown = [c for c in rank.captures if c.proc.pid]
    if len(shown) < back:
        return []
    rows = shown[-back].proc.fds.open
    return [row for row in rows if row.kind == "tcp" and row.peer and row.state == "ESTABLISHED"]


def _plain(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host.strip('[]').removeprefix(MAPPED)}:{port}"

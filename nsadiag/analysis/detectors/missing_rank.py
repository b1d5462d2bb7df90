"""Peers wait in a collective that a live rank of the group never issued."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import Wait, is_still, waits
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where


def _evidence(
    cell: CellEvidence, tables: Tables, wait: Wait, guilty: int, seen_from: int
) -> tuple[Evidence, ...]:
    op = wait.collective(seen_from).op
    look = cell.watch["looks"][-1]
    last = tables.last_issued(wait.group, guilty)
    rank = cell.rank(guilty)
    capture = rank.last_capture.source if rank.last_capture else rank.source
    return (
        Evidence(
            claim=f"rank {seen_from} issued {op} {wait.seq} of {wait.group} and it is not over",
            source=wait.source(cell, seen_from),
        ),
        Evidence(
            claim=f"rank {guilty} never issued it: its last in {wait.group} is {last}",
            source=f"{capture}/fr.json",
        ),
        Evidence(
            claim=f"rank {guilty} stood at the same line in both looks", source=f"{capture}/py_spy.json"
        ),
        Evidence(claim=look["reason"], source="watch.json#looks"),
    )


def missing_rank(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    if not is_still(cell):
        return
    for wait in waits(cell, tables):
        alive = tuple(r for r in wait.missing if cell.rank(r).end.get("by_us", True))
        if not alive or not wait.waiting:
            continue
        guilty, blocked = alive[0], wait.waiting[0]
        here = places.of_rank_now(cell.rank(guilty))
        peers_at = places.of_rank_now(cell.rank(blocked))
        collective = wait.collective(blocked)
        at = f" It is at {places.short(here)}." if here else ""
        ranks = ", ".join(map(str, alive))
        yield Finding(
            detector="missing_rank",
            cls="missing_rank",
            outcome="hung",
            confidence=0.9 if here else 0.75,
            summary=f"Rank {ranks} never joined {collective.op} {wait.seq} of {wait.group}, in which {len(wait.waiting)} of {cell.world_size} ranks wait.{at}",
            guilty_ranks=alive,
            blocked_ranks=wait.waiting,
            where=Where(collective=collective, step=cell.rank(guilty).end.get("steps")).at(here),
            peers_at=peers_at,
            evidence=_evidence(cell, tables, wait, guilty, blocked),
            rejected=(
                Rejected(
                    cls="straggler_rank",
                    because=f"rank {guilty} made no progress between the two looks: {cell.watch['looks'][-1]['reason']}",
                ),
                Rejected(cls="rank_killed", because=f"rank {guilty} was alive when its stack was taken"),
            ),
            fix="Let every rank of the group issue the same collectives: find what keeps this rank at the line shown, or what let it pass by.",
        )

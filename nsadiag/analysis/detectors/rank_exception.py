"""The first exception on any rank; peers that fail afterwards are victims."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.breaks import breaks, first_break
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

# The same first words on another rank within this time is the same mistake, not a consequence.
TOGETHER_S = 1.0


def rank_exception(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    first = first_break(cell)
    if first is None or first.kind != "exception" or first.rank.exception is None:
        return
    exception = first.rank.exception
    headline = f"{exception['type']}: {exception['message'].splitlines()[0] if exception['message'] else ''}"[
        :300
    ]
    alike = [
        b.rank.rank
        for b in breaks(cell)
        if b.rank.exception
        and b.rank.exception["type"] == exception["type"]
        and not b.follows_a_peer
        and b.t_s - first.t_s < TOGETHER_S
    ]
    victims = [b for b in breaks(cell) if b.rank.rank not in alike]
    evidence = [
        Evidence(
            claim=f"rank {first.rank.rank} raised {headline} at {first.t_s:.1f} s, first of all",
            source=f"{first.rank.source}/exception.json",
        )
    ]
    for victim in victims[:3]:
        if victim.rank.exception:
            evidence.append(
                Evidence(
                    claim=f"rank {victim.rank.rank} failed {victim.t_s - first.t_s:.1f} s later: {victim.rank.exception['type']}",
                    source=f"{victim.rank.source}/exception.json",
                )
            )
    who = "Every rank" if len(alike) == cell.world_size > 1 else f"Rank {', '.join(map(str, sorted(alike)))}"
    yield Finding(
        detector="rank_exception",
        cls="rank_exception",
        outcome="hung" if cell.stopped == "hang" else "crashed",
        confidence=0.95,
        summary=f"{who} raised {headline}",
        guilty_ranks=tuple(sorted(set(alike))),
        blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank not in alike),
        where=Where(step=first.rank.end.get("steps")).at(places.of_exception(exception)),
        evidence=tuple(evidence),
        rejected=(
            Rejected(cls="rank_killed", because="no rank was ended by a signal before this exception"),
        ),
        fix="Mend the line shown; the other ranks' errors go away with it."
        if victims
        else "Mend the line shown.",
    )

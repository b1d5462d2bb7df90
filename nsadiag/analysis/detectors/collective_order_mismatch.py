"""Same group, same sequence number, different operation: the ranks disagree on what comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence, RankEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import Wait, is_still, waits
from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where


def _is_at_a_new_place(tables: Tables, rank: RankEvidence) -> bool:
    """Whether the rank had never before called from the line it now stands at: it has left the common path."""
    events = tables.events
    mine = events[(events["rank"] == rank.rank) & (events.phase == Phase.BEGIN) & (events.place != "")]
    calls = mine[mine.kind.isin((Kind.COLLECTIVE, Kind.BACKWARD, Kind.FORWARD))]
    return len(calls) > 1 and int((calls.place == calls.place.iloc[-1]).sum()) == 1


def _suspects(cell: CellEvidence, tables: Tables, ops: dict[int, str]) -> tuple[tuple[int, ...], str]:
    """The minority; where there is none, whoever stands at a line it has never been at before."""
    (majority, most), *others = Counter(ops.values()).most_common()
    if most > others[0][1]:
        return tuple(sorted(r for r, op in ops.items() if op != majority)), "the minority"
    strayed = tuple(sorted(r for r in ops if _is_at_a_new_place(tables, cell.rank(r))))
    if strayed and len(strayed) < len(ops):
        return strayed, "at a line it had not been at before, while its peers repeat theirs"
    return tuple(sorted(ops)), "no majority, and no rank that left its path"


def _finding(cell: CellEvidence, tables: Tables, wait: Wait, ops: dict[int, str]) -> Finding:
    guilty, why = _suspects(cell, tables, ops)
    clear = len(guilty) < len(ops)
    blocked = tuple(sorted(r for r in ops if r not in guilty)) if clear else ()
    here = wait.issued_at(cell, guilty[0]) or places.of_rank_now(cell.rank(guilty[0]))
    said = "; ".join(f"rank {r}: {op}" for r, op in sorted(ops.items())[:8])
    return Finding(
        detector="collective_order_mismatch",
        cls="collective_order_mismatch",
        outcome="hung",
        confidence=0.9 if clear else 0.6,
        summary=f"The ranks disagree on collective {wait.seq} of {wait.group} ({said}); rank {', '.join(map(str, guilty))} is {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(collective=wait.collective(guilty[0]), step=cell.rank(guilty[0]).end.get("steps")).at(
            here
        ),
        peers_at=wait.issued_at(cell, blocked[0]) if blocked else None,
        evidence=tuple(
            Evidence(claim=f"rank {r} issued {op} as number {wait.seq}", source=wait.source(cell, r))
            for r, op in sorted(ops.items())[:8]
        ),
        rejected=(
            Rejected(cls="missing_rank", because=f"every rank issued a collective with number {wait.seq}"),
        ),
        fix="Make all ranks issue the same collectives in the same order; if their loops have different lengths, agree on the shortest (or use Join).",
    )


def collective_order_mismatch(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    if not is_still(cell):
        return
    for wait in waits(cell, tables):
        ops = {int(rank): str(op) for rank, op in wait.calls[["rank", "op"]].itertuples(index=False)}
        if not wait.missing and len(set(ops.values())) > 1:
            yield _finding(cell, tables, wait, ops)

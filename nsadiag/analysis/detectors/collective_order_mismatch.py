"""Same group, same number, different call; or a cycle over several groups: the ranks disagree on what comes next."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.breaks import breaks
from nsadiag.analysis.cycles import cycle_finding
from nsadiag.analysis.disagreement import Disagreement, in_black_boxes, in_recorders
from nsadiag.analysis.groups import shown
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.suspects import is_out_of_order, suspects
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import is_still
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

FIX = "Make all ranks issue the same collectives in the same order: iterate over what is ordered alike on all of them (sorted keys), and keep a condition on one rank's data out of the way to a collective."
FIX_THREADS = "Give the thread a process group of its own (dist.new_group on all ranks), or let one thread issue all collectives of a group."


def collective_order_mismatch(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    if not is_still(cell):
        return
    recorded = in_recorders(cell, tables)
    # What the backend was asked for decides, where it is known; two names for one operation are no mismatch.
    for one in recorded or in_black_boxes(cell, tables):
        if is_out_of_order(tables, one):
            yield _finding(cell, tables, one)
    yield from cycle_finding(cell, tables)


def collective_order_crash(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    """The same where the transport refused what did not fit: its error is the consequence."""
    if is_still(cell) or not breaks(cell):
        return
    for one in in_black_boxes(cell, tables):
        if is_out_of_order(tables, one) and _broke_there(cell, tables, one):
            yield _finding(cell, tables, one)


def _broke_there(cell: CellEvidence, tables: Tables, one: Disagreement) -> bool:
    """Whether nobody got past that call, and whoever raised an exception raised it there."""
    asked = tables.asked[(tables.asked.group == one.group) & tables.asked["rank"].isin(one.asked)]
    # Each further thread may have had a call of its own under way.
    others = max((len(used) for used in _threads(tables, one).values()), default=1) - 1
    if int(asked.call.max()) > one.call + others:
        return False
    raised = {rank.rank: places.of_exception(rank.exception) for rank in cell.ranks if rank.exception}
    at = {rank: a.place for rank, a in one.asked.items()}
    return all(
        rank not in at or (place is not None and at[rank] is not None and place.line == at[rank].line)  # type: ignore[union-attr]
        for rank, place in raised.items()
    )


def _threads(tables: Tables, one: Disagreement) -> dict[int, set[int]]:
    """The threads from which each rank called collectives of the group."""
    rows = tables.asked[tables.asked.group == one.group]
    return {int(str(rank)): {int(t) for t in frame.thread} for rank, frame in rows.groupby("rank")}


def _finding(cell: CellEvidence, tables: Tables, one: Disagreement) -> Finding:
    threads = {rank: len(used) for rank, used in _threads(tables, one).items() if rank in one.asked}
    several = bool(threads) and min(threads.values()) > 1
    guilty, why = suspects(tables, one)
    if several:
        guilty, why = tuple(sorted(one.asked)), "each with two threads that issue collectives in this group"
    clear = len(guilty) < len(one.asked) or several
    blocked = tuple(sorted(set(one.asked) - set(guilty)))
    first = one.asked[guilty[0]]
    here = first.place or places.of_rank_now(cell.rank(guilty[0]))
    said = "; ".join(f"rank {r}: {a.what}" for r, a in sorted(one.asked.items())[:6])
    return Finding(
        detector="collective_order_mismatch",
        cls="collective_order_mismatch",
        outcome="hung" if is_still(cell) else "crashed",
        confidence=0.9 if clear else 0.6,
        summary=f"The ranks disagree on collective {one.call} of {one.group} ({said}); rank {shown(cell.everyone(guilty))} is {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(collective=one.collective(guilty[0]), step=cell.rank(guilty[0]).end.get("steps")).at(
            here
        ),
        peers_at=one.asked[blocked[0]].place if blocked else None,
        evidence=tuple(
            Evidence(claim=f"rank {r} issued {a.what} as number {one.call}", source=a.source)
            for r, a in sorted(one.asked.items())[:8]
        ),
        rejected=(
            Rejected(cls="missing_rank", because=f"every rank issued a collective with number {one.call}"),
            Rejected(
                cls="collective_args_mismatch",
                because="the ranks are at different calls of the program, not in one call with other arguments",
            ),
        ),
        fix=FIX_THREADS if several else FIX,
    )

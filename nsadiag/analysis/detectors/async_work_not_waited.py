"""An asynchronous collective that nobody waited for: what it fills was used while it was being filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence, RankEvidence
from nsadiag.analysis.replicas import drift
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Outcome, Rejected, Where

# Of handles that are only known to be dropped: one at the end of a run may belong to nothing any more.
MIN_DROPPED = 3


def _deciding(rank: RankEvidence) -> tuple[dict[str, Any], int, int] | None:
    """The row to show, its line, and how many handles of its place there are."""
    by_place = Counter(row["place"] for row in rank.unwaited)
    read = [(n, row) for n, row in enumerate(rank.unwaited, start=1) if row["parameter"]]
    dropped = [
        (n, row) for n, row in enumerate(rank.unwaited, start=1) if by_place[row["place"]] >= MIN_DROPPED
    ]
    for line, row in (*read, *dropped):
        return row, line, by_place[row["place"]]
    return None


def _outcome(cell: CellEvidence) -> Outcome:
    if cell.stopped == "hang":
        return "hung"
    return "crashed" if any(r.exception for r in cell.ranks) else "wrong"


def async_work_not_waited(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    shown = {rank.rank: found for rank in cell.ranks if (found := _deciding(rank))}
    if not shown:
        return
    guilty = tuple(sorted(shown))
    rank, (row, line, count) = cell.rank(guilty[0]), shown[guilty[0]]
    parted = drift(cell)
    used = (
        f"the optimizer used the gradient of {row['parameter']} before"
        if row["parameter"]
        else "its handle was dropped"
    )
    evidence = [
        Evidence(
            claim=f"{row['op']} {row['number']} of {row['group']}, started at step {row['issued_step']}: {used}, and nobody had waited for it",
            source=f"{rank.source}/unwaited.jsonl#{line}",
        ),
        Evidence(claim=f"{count} such handles of this line", source=f"{rank.source}/unwaited.jsonl"),
    ]
    if parted:
        evidence.append(Evidence(claim=parted.says, source=parted.source))
    yield Finding(
        detector="async_work_not_waited",
        cls="async_work_not_waited",
        outcome=_outcome(cell),
        confidence=0.95 if row["parameter"] else 0.85 if parted else 0.75,
        summary=f"{row['op']} with async_op=True was never waited for on {_ranks(cell, guilty)} ({count} times): {used} it was complete."
        if row["parameter"]
        else f"{row['op']} with async_op=True was never waited for on {_ranks(cell, guilty)} ({count} times): {used}, and what it fills may have been used before it was complete.",
        guilty_ranks=guilty,
        blocked_ranks=(),
        where=Where(parameter=row["parameter"], step=int(row["issued_step"])).at(
            places.of_text(row["place"])
        ),
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="healthy",
                because="it may run to its end, but gradients were read while they were being reduced",
            ),
        ),
        fix="Keep the handle and call .wait() before the tensor is used: work = dist.all_reduce(t, async_op=True); ...; work.wait().",
    )


def _ranks(cell: CellEvidence, guilty: tuple[int, ...]) -> str:
    return "every rank" if len(cell.everyone(guilty)) == cell.world_size else f"rank {cell.names(guilty)}"

"""An asynchronous collective that was waited for too late or never, so that its buffer was used while being filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.replica_sums import drift
from nsadiag.analysis.rules.correctness.buffer_hazards import early_use
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Unwaited
from nsadiag.evidence.records import Outcome, Strength, Where

# Dropped handles are significant from this number on: one at the end of a run may be harmless.
MIN_DROPPED = 3


def _deciding(rank: RankEvidence) -> tuple[Unwaited, int, int] | None:
    """The row to show, its line number, and the number of handles from its place."""
    by_place = Counter(row.place for row in rank.unwaited)
    read = [(n, row) for n, row in enumerate(rank.unwaited, start=1) if row.parameter]
    dropped = [(n, row) for n, row in enumerate(rank.unwaited, start=1) if by_place[row.place] >= MIN_DROPPED]
    for line, row in (*read, *dropped):
        return row, line, by_place[row.place]
    return None


def _outcome(cell: CellEvidence) -> Outcome:
    if cell.stopped == "hang":
        return "hung"
    return "crashed" if any(r.exception for r in cell.ranks) else "wrong"


def async_work_not_waited(case: Case) -> Iterator[Draft | Declined]:
    shown = {rank.rank: found for rank in case.cell.ranks if (found := _deciding(rank))}
    if not shown:
        yield from _used_before_the_wait(case)
        yield Declined(
            f"no handle of an asynchronous collective was recorded as dropped on {len(case.cell.ranks)} ranks"
        )
        return
    guilty = tuple(sorted(shown))
    rank, (row, line, count) = case.cell.rank(guilty[0]), shown[guilty[0]]
    drifted = drift(case.cell)
    used = (
        f"the optimizer used the gradient of {row.parameter} before"
        if row.parameter
        else "its handle was dropped"
    )
    evidence = {
        f"{row.op} {row.number} of {row.group}, started at step {row.issued_step}: {used}, without a wait": f"{rank.source}/unwaited.jsonl#{line}",
        f"{count} such handles from this line": f"{rank.source}/unwaited.jsonl",
    }
    if drifted:
        evidence[drifted.says] = drifted.source
    yield Draft(
        outcome=_outcome(case.cell),
        strength=Strength.CONCLUSIVE if row.parameter else Strength.STRONG if drifted else Strength.LIKELY,
        summary=f"{row.op} with async_op=True was never waited for on {_ranks(case.cell, guilty)} ({count} times): {used} it was complete."
        if row.parameter
        else f"{row.op} with async_op=True was never waited for on {_ranks(case.cell, guilty)} ({count} times): {used}, and its buffer may have been used before it was complete.",
        guilty_ranks=guilty,
        where=Where(parameter=row.parameter, step=row.issued_step).at(locations.of_text(row.place)),
        evidence=evidence,
        fix="Keep the handle and call .wait() before the tensor is used: work = dist.all_reduce(t, async_op=True); ...; work.wait().",
    )


def _used_before_the_wait(case: Case) -> Iterator[Draft]:
    """A buffer that the source uses before the wait, if replicas diverged: whether the call was complete by then is chance."""
    if case.cell.stopped == "hang" or any(rank.exception for rank in case.cell.ranks):
        return
    drifted = drift(case.cell)
    early = early_use(case) if drifted and not drifted.from_start else None
    if drifted is None or early is None:
        return
    at, started = locations.short(early.used), locations.short(early.started)
    yield Draft(
        strength=Strength.STRONG,
        summary=f"`{early.buffer}` is used at {at}, right after {early.op} with async_op=True was started on it ({started}) and before any wait; the replicas differ from step {drifted.step} on.",
        guilty_ranks=early.ranks,
        where=Where(step=drifted.step).at(early.used),
        evidence={
            f"{early.op} was started {early.times} times at {started}, and the same block continues to {at} without a wait": f"{case.cell.rank(early.ranks[0]).source}/blackbox.bin",
            drifted.says: drifted.source,
        },
        fix="Use the buffer after the wait: keep the handle and the buffer together, and copy back once work.wait() has returned.",
    )


def _ranks(cell: CellEvidence, guilty: tuple[int, ...]) -> str:
    return "every rank" if len(cell.everyone(guilty)) == cell.world_size else named(cell, guilty)


RULE = Rule(
    name="async_work_not_waited",
    means={
        "async_work_not_waited": "Asynchronous work was never waited for, or its buffers were used too early."
    },
    family="correctness",
    outcome="wrong",
    detected="The handle of an asynchronous collective, started at a line of the user's, had been neither waited for nor queried when the optimizer used the gradient that it reduces; or three or more such handles from one line were dropped; or replicas differ, and the lines after the call use its buffer before any wait",
    fix="Keep the handle and call .wait() before the tensor is used.",
    check=async_work_not_waited,
    needs=("black_boxes",),
    confused_with=("healthy",),
)

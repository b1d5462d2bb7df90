"""An asynchronous collective that was waited for too late or never, so that its buffer was used while being filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.call_mismatch import shapes
from nsadiag.analysis.relations.pending import ran_well
from nsadiag.analysis.relations.replica_sums import drift, not_finite
from nsadiag.analysis.relations.replication import FEW
from nsadiag.analysis.rules.correctness.silent_error import silent_error, whose
from nsadiag.analysis.rules.drafts import hung_or_crashed, recorder_of
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Unwaited
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.buffers import FILL, used_after

# Dropped handles are significant from this number on: one at the end of a run may be harmless.
MIN_DROPPED = 3


def async_work_not_waited(case: Case) -> Iterator[Draft | Declined]:
    shown = {rank.rank: found for rank in case.cell.ranks if (found := _deciding(rank))}
    if not shown:
        yield from _used_before_the_wait(case)
        yield Declined(f"{everyone(case.cell)} dropped no handle of an asynchronous collective")
        return
    guilty = tuple(sorted(shown))
    row, line, count = shown[guilty[0]]
    file = f"{case.cell.rank(guilty[0]).source}/unwaited.jsonl"
    drifted = drift(case.cell)
    used, so = "its handle was dropped", ", and its buffer may have been used before it was complete"
    if row.parameter:
        used, so = f"the optimizer used the gradient of {row.parameter} before", " it was complete"
    yield Draft(
        outcome=None if ran_well(case.cell) else hung_or_crashed(case.cell),
        strength=Strength.CONCLUSIVE if row.parameter else Strength.STRONG if drifted else Strength.LIKELY,
        summary=f"{row.op} with async_op=True was never waited for on {whose(case, guilty)} ({count} times): {used}{so}.",
        guilty_ranks=guilty,
        at=locations.of_text(row.place),
        where=Where(parameter=row.parameter, step=row.issued_step),
        evidence={
            f"{call_name(row.op, row.number, row.group)}, started at step {row.issued_step}: {used}, without a wait": f"{file}#{line}",
            f"{count} such handles from this line": file,
            **({drifted.says: drifted.source} if drifted else {}),
        },
        fix="Keep the handle and call .wait() before the tensor is used: work = dist.all_reduce(t, async_op=True); ...; work.wait().",
    )


def _deciding(rank: RankEvidence) -> tuple[Unwaited, int, int] | None:
    """The row to show, its line number, and the number of handles from its place."""
    by_place = Counter(row.place for row in rank.unwaited)
    rows = list(enumerate(rank.unwaited, start=1))
    read = [(line, row) for line, row in rows if row.parameter]
    dropped = [(line, row) for line, row in rows if by_place[row.place] >= MIN_DROPPED]
    return next(((row, line, by_place[row.place]) for line, row in (*read, *dropped)), None)


def _used_before_the_wait(case: Case) -> Iterator[Draft]:
    """A buffer that the source uses before the wait, where that shows: replicas that differ, parameters that are not finite.

    Whether the call was complete by then is chance; in a rehearsal it never is, and the buffer holds NaN.
    """
    shown = _effect(case) if ran_well(case.cell) else None
    early = _early_use(case) if shown else None
    if shown is None or early is None:
        return
    at, started = locations.short(early.used), locations.short(early.started)
    claim = f"{early.op} was started {early.times} times at {started}, and the same block continues to {at} without a wait"
    yield silent_error(
        case,
        f"`{early.buffer}` is used at {at}, right after {early.op} with async_op=True was started on it ({started}) and before any wait; {shown.says}.",
        {claim: recorder_of(case.cell, early.ranks[0]), shown.claim: shown.source},
        early.used,
        Where(step=shown.step),
        "Use the buffer after the wait: keep the handle and the buffer together, and copy back once work.wait() has returned.",
        ranks=early.ranks,
    )


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The visible effect of values that were used too early."""

    says: str
    claim: str
    source: str
    step: int


def _effect(case: Case) -> Effect | None:
    drifted = drift(case.cell)
    if drifted is not None and not drifted.from_start:
        says = f"the replicas differ from step {drifted.step} on"
        return Effect(says=says, claim=drifted.says, source=drifted.source, step=drifted.step)
    for rank in case.cell.ranks:
        if found := not_finite(rank):
            claim = f"{found[1]} of rank {rank.rank} is not finite after step {found[0]}"
            return Effect(
                says=f"parameters are not finite after step {found[0]}",
                claim=claim,
                source=f"{rank.source}/replicas.jsonl",
                step=found[0],
            )
    return None


@dataclass(frozen=True, kw_only=True)
class EarlyUse:
    """The line of a collective, and the following line that uses its buffer."""

    op: str
    started: Place
    used: Place
    buffer: str  # as written in the source
    ranks: tuple[int, ...]
    times: int  # number of starts on the first rank


def _early_use(case: Case) -> EarlyUse | None:
    """The first such line that the job has run repeatedly on a buffer of more than a few elements."""
    calls = case.asked[case.asked.op.isin(FILL)]
    for text, rows in calls.groupby("place", sort=False):
        started = locations.of_text(str(text))
        source = case.cell.code.file(started.file) if started else None
        large = any(elements > FEW for tensors in rows.tensors.unique() for _, elements in shapes(tensors))
        found = next(used_after(source, started.line), None) if started and source and large else None
        if started and found:
            times = dict(sorted(rows["rank"].value_counts().items()))
            return EarlyUse(
                op=str(rows.op.iloc[0]),
                started=started,
                used=locations.place(started.file, found[0], started.function),
                buffer=found[1],
                ranks=tuple(times),
                times=next(iter(times.values())),
            )
    return None


RULE = Rule(
    means={
        "async_work_not_waited": "Asynchronous work was never waited for, or its buffers were used too early."
    },
    family="correctness",
    detected="The handle of an asynchronous collective, started at a line of the user's, had been neither waited for nor queried when the optimizer used the gradient that it reduces; or three or more such handles from one line were dropped; or replicas differ, or parameters are not finite, and the lines after the call use its buffer before any wait",
    fix="Keep the handle and call .wait() before the tensor is used.",
    check=async_work_not_waited,
    keeps="order",
    needs=("black_boxes",),
)

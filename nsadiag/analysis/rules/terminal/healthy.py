"""The job came to its end, or progressed at its own rhythm until it was told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_suspended
from nsadiag.analysis.rules.correctness.duplicate_inputs import same_batches
from nsadiag.analysis.rules.drafts import last_look
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Evidence, Strength


def _finished(rank: RankEvidence) -> bool:
    """Reached its exit handlers without an exception; gloo may abort the process after that (seen in 6 of 48 clean jobs).

    Or it passed them by on purpose: `os._exit(0)` at the end, so that no teardown can hang.
    """
    code, number = rank.end.exit_code, rank.end.signal
    left = rank.leaving
    on_purpose = left is not None and left.call == "_exit" and code == 0 and not left.handling
    return (
        (rank.end.clean or on_purpose)
        and not rank.damaged
        and rank.exception is None
        and (code in (0, None) or number == signal.SIGABRT)
    )


def _was_progressing(cell: CellEvidence) -> bool:
    looks = cell.watch.looks
    return (
        cell.stopped == "timeout"
        and bool(looks and cell.ranks)
        and looks[-1].judgement in ("progress", "asleep")
        and not is_suspended(cell)
    )


def _is_progressing(cell: CellEvidence) -> str | None:
    """The motion of a job that was attached to; None where nothing moved, or only a CPU at one and the same line."""
    looks = cell.watch.looks
    if not cell.attached or not looks or looks[-1].judgement not in ("progress", "busy", "asleep"):
        return None
    computes = looks[-1].judgement == "busy"
    moved = any(m.frames_changed or m.io_bytes or m.gpu_pct for m in looks[-1].motions)
    return looks[-1].reason if moved or not computes else None


def _restarts(cell: CellEvidence) -> Iterator[Evidence]:
    """The exceptions that ended the attempts before the one that came to its end."""
    ended = sorted(
        (number, e.t_mono_ns, rank.rank, e)
        for rank in cell.ranks
        for number, e in rank.attempts
        if e.thread == "MainThread"
    )
    for number in sorted({row[0] for row in ended}):
        _, _, rank_number, exception = next(row for row in ended if row[0] == number)
        yield Evidence(
            claim=f"attempt {number} ended as rank {rank_number} raised {headline(first_of(exception))}; the launcher started the ranks anew",
            source=f"{cell.rank(rank_number).source}/attempts/{number:02d}/exception.json",
        )


def healthy(case: Case) -> Iterator[Draft | Declined]:
    steps = max((int(r.end.steps or 0) for r in case.cell.ranks), default=0)
    # What ends with an error has not completed, whatever its ranks say: unless that is how one of them was torn down.
    failed = bool(case.cell.launcher_exit_code) and not any(r.end.signal for r in case.cell.ranks)
    if case.cell.ranks and not case.cell.absent and not failed and all(_finished(r) for r in case.cell.ranks):
        aborted = [r.rank for r in case.cell.ranks if r.end.signal]
        signals = {signal.Signals(r.end.signal).name for r in case.cell.ranks if r.end.signal}
        evidence = [
            Evidence(
                claim=f"all {case.cell.world_size} ranks ran to their exit handlers without an exception"
                if all(r.end.clean for r in case.cell.ranks)
                else f"all {case.cell.world_size} ranks ended without an exception, by os._exit(0) or at their end",
                source="ends.json",
            )
        ]
        if aborted:
            evidence.append(
                Evidence(
                    claim=f"rank {case.cell.names(aborted)} was ended by {' or '.join(sorted(signals))} after its exit handlers: by its teardown, not by the job",
                    source="ends.json",
                )
            )
        restarts = list(_restarts(case.cell))
        evidence += restarts[:3]
        again = ", after a restart" if restarts else ""
        remark = same_batches(case)
        evidence += remark.evidence if remark else ()
        yield Draft(
            outcome="healthy",
            strength=Strength.CONCLUSIVE if not aborted else Strength.STRONG,
            summary=f"Completed: {steps} step{'' if steps == 1 else 's'} on {case.cell.world_size} rank{'s' if case.cell.world_size > 1 else ''} in {case.cell.watch.ended_s or 0:.1f} s{again}."
            + (f" {remark.sentence}" if remark else ""),
            evidence=tuple(evidence),
            fix=remark.fix if remark else None,
        )
    elif _was_progressing(case.cell):
        yield Draft(
            outcome="healthy",
            strength=Strength.WEAK if case.cell.absent else Strength.STRONG,
            summary=f"Still progressing at its own rhythm when --timeout ended it: {steps} steps in {case.cell.watch.ended_s or 0:.0f} s.",
            evidence=(last_look(case.cell),),
        )
    elif moved := _is_progressing(case.cell):
        sure = case.cell.watch.looks[-1].judgement == "progress"
        yield Draft(
            outcome="healthy",
            strength=Strength.STRONG if sure else Strength.WEAK,
            summary=f"Progressing when it was looked at: {moved}.",
            evidence=(Evidence(claim=moved, source="watch.json#looks"),),
        )
    yield from other_break(case.cell)


RULE = Rule(
    name="healthy",
    concludes=("healthy",),
    means={"healthy": "It completed, or progresses at its own rhythm."},
    family="terminal",
    outcome="healthy",
    detected="all ranks reached their exit handlers without an exception, or progressed until `--timeout`",
    fix="",
    check=healthy,
    needs=("ends",),
)

"""The verdict of one cell: the first finding in causal order, with what the others and the gaps add."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsadiag.analysis import because
from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import Candidate, Rejection
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.explanation import candidates, obstacle, rejections
from nsadiag.analysis.ingest import masked_exceptions, sources
from nsadiag.analysis.judgement import (
    caveats,
    certainty,
    citations,
    framework_frames,
    hypotheses,
    library_frames,
    own_fault,
    progress,
    victims,
)
from nsadiag.analysis.judgement.conclude import verdict_of
from nsadiag.analysis.load import load_cell, load_collected, load_run
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.resolve import Resolution, resolve, with_answers
from nsadiag.analysis.roles import of_all_roles
from nsadiag.analysis.scale.digests.chosen import reduce_many
from nsadiag.analysis.tracing.answers import true_at
from nsadiag.errors import unwritable
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.records import Action, Strength, Times, Verdict, attempt_of
from nsadiag.evidence.user_code import counted, valid_roots


def judge(cell: CellEvidence, *, verdict_s: float | None = None) -> Verdict:
    """The cell's verdict. Detectors are tried in causal order: the first that speaks explains the rest."""
    with counted(_user_code(cell)):
        return _judged(cell, verdict_s=verdict_s)


def _user_code(cell: CellEvidence) -> Iterator[str]:
    """Packages that count as the user's."""
    for rank in cell.ranks:
        yield from valid_roots(rank.meta.user_code)
    if cell.ray:
        yield from valid_roots(cell.ray.job.user_code)


def _judged(cell: CellEvidence, *, verdict_s: float | None) -> Verdict:
    cell = masked_exceptions.marked(cell)
    case = Case(cell)
    with sources.shown(cell):
        cause, failed = resolve(case).outcome
        cause = framework_frames.shown(cell, own_fault.instead(cell, cause))
        cause = library_frames.shown(cell, cause)
    if any(r.damaged for r in cell.ranks) or cell.absent - set(cause.guilty_ranks):
        # Whoever left nothing that can be read may be the one, and half a document tells half: no certainty.
        cause = dataclasses.replace(cause, strength=cause.strength.at_most(Strength.LIKELY))
    cause, weight = certainty.weighed(case, cause)
    cause = caveats.added(cell, victims.told(cell, cause))
    cause = citations.checked(cell, cause)
    with sources.shown(cell):
        lines = because.lines_of(case, cause)
    verdict = verdict_of(
        cell, cause, (*failed, *lines.failed), progress=progress.done_by(case), times=_times(cell, verdict_s)
    )
    verdict = dataclasses.replace(
        verdict,
        certainty=weight,
        peer_waits=progress.peer_waits_in(case),
        stands_at=lines.stands_at,
        because=lines.because,
        hypotheses=hypotheses.hypotheses_of(case, cause),
    )
    return because.confirmed(cell, verdict)


def _times(cell: CellEvidence, verdict_s: float | None) -> Times:
    moved_s = cell.watch.last_progress_s
    # A silence that was looked at before the last progress was not the end.
    silent = (look for look in cell.watch.looks if moved_s is None or look.t_s >= moved_s)
    still = next((look for look in silent if look.judgement == "still"), None)
    return Times(
        onset_s=moved_s if still else None,
        detected_s=still.t_s if still else None,
        verdict_s=verdict_s,
    )


def _knowing_attempts(verdict: Verdict, run: RunDir) -> Verdict:
    """No retry where an attempt before this one, of which run.json tells, failed of the same on the same ranks."""
    if not verdict.action or verdict.action.do != "retry":
        return verdict
    for number, attempt in enumerate(read_json(run.run, {}).get("earlier", ()), 1):
        guilty = tuple(attempt["guilty_ranks"])
        if attempt["signature"] == verdict.signature and guilty == verdict.guilty_ranks[: len(guilty) or 1]:
            because = f"attempt {number} failed of the same on the same ranks: nothing shows that a further one would not"
            return dataclasses.replace(verdict, action=Action(do="stop", because=because, source="run.json"))
    return verdict


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Every rule tried on a run directory, and what was looked at to explain a divergence."""

    resolution: Resolution
    candidates: tuple[Candidate, ...]  # the best first
    rejections: dict[
        Rejection, tuple[str, ...]
    ]  # with the lines of code that hold the condition to be uniform
    obstacle: Declined | None


def trials_of(*paths: Path, rules: Collection[str] = ()) -> Trials:
    """The trials of a run directory, or of what other tools left; nothing is written.

    `rules`: names of those that, besides the one of the verdict, have the answers that they were given.
    """
    cell = load_cell(*paths)
    with counted(_user_code(cell)):
        cell = masked_exceptions.marked(cell)
        case = Case(cell)
        with sources.shown(cell):
            found = resolve(case, everything=True)
            attempts = tuple(
                with_answers(each, case) if each is found.winner or each.rule.name in rules else each
                for each in found.attempts
            )
            return Trials(
                resolution=Resolution(attempts=attempts),
                candidates=case.once(candidates),
                rejections={each: _held_at(case, each) for each in rejections(case)},
                obstacle=case.once(obstacle),
            )


def _held_at(case: Case, rejection: Rejection) -> tuple[str, ...]:
    program, condition = case.once(Context).program, rejection.condition
    return () if condition.differs else true_at(lambda: program.provenance_of(condition))


def judge_evidence(*paths: Path) -> Verdict:
    """The verdict on what other tools left; nothing is written. Raises UsageError where none of it is evidence."""
    return judge_attempts(load_collected(*paths))


def judge_attempts(attempts: Sequence[CellEvidence]) -> Verdict:
    """The verdict on the last attempt, with those on the earlier ones in short."""
    earlier = tuple(attempt_of(number, judge(cell)) for number, cell in enumerate(attempts[:-1], 1))
    return dataclasses.replace(judge(attempts[-1]), earlier=earlier)


def judge_directory(path: Path, *, live: bool = False) -> Verdict:
    """Judges what lies in a run directory and writes verdict.json there. Raises MachineError where that fails.

    `live`: the run has just ended here, so that the time to the verdict means something.
    """
    run = RunDir(path=path)
    if not live:
        # What a live job's nodes reduced may be of before its end: here all has been written.
        with contextlib.suppress(OSError):
            reduce_many(run)
    cell = load_run(path)
    verdict_s = (time.monotonic_ns() - cell.started_mono_ns) / 1e9 if live and cell.started_mono_ns else None
    verdict = of_all_roles(path, cell, judge(cell, verdict_s=verdict_s), judge)
    if live and cell.stopped == "hang":
        # The answer was there before the job was ended; another one, as a second look gives, was not.
        first = read_json(run.verdict, {})
        told_s = first.get("times", {}).get("verdict_s")
        if told_s is not None and first.get("signature") == verdict.signature:
            verdict = dataclasses.replace(verdict, times=dataclasses.replace(verdict.times, verdict_s=told_s))
    verdict = _knowing_attempts(verdict, run)
    try:
        write_json(run.verdict, verdict.to_json())
    except OSError as error:
        raise unwritable(error) from None
    return verdict

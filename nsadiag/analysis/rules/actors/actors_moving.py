"""A job of Ray's that moves, or is about to."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.stuck import (
    alone,
    job_of,
    open_wait,
    outside,
    sleeping,
    starting,
    working,
)
from nsadiag.analysis.relations.actors.words import several, standing
from nsadiag.analysis.rules.actors.parts import unseen
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength


def actors_progress(case: Case) -> Iterator[Draft | Declined]:
    job, busy = case.once(job_of), working(case)
    if job.moved:
        names = [task.name for task in job.moved]
        yield _progress(
            case,
            f"{len(names)} call{'s' if len(names) > 1 else ''} began or ended in {job.ray.watched_s:.0f} s ({several(sorted(set(names)))})",
        )
    elif busy:
        most = max(busy, key=lambda s: s.cpu_share + s.beside_share)
        share = most.cpu_share + most.beside_share
        used = f"used {share:.1f} CPUs" if share > 0.05 else "went on to other lines"
        yield _progress(case, f"{standing(job, most)} and {used}")
    elif found := sleeping(case):
        yield _progress(case, f"{standing(job, found[0])}, in a sleep that ends by itself")
    yield Declined(f"no call began, ended or went on in {job.ray.watched_s:.0f} s", job.document)


def _progress(case: Case, says: str) -> Draft:
    return Draft(
        cls="healthy",
        outcome="healthy",
        strength=Strength.LIKELY,
        summary=f"The job progresses: {says}.",
        evidence={says: case.once(job_of).document},
        gaps=unseen(case),
    )


def actors_open(case: Case) -> Iterator[Draft | Declined]:
    waits = bool(alone(case) or outside(case) or starting(case))
    yield Draft(
        cls="incomplete" if waits else "unknown",
        outcome="incomplete" if waits else "unknown",
        strength=Strength.GUESS,
        summary=f"Nothing moved in {case.once(job_of).ray.watched_s:.0f} s, and nothing shows that it never will: {open_wait(case)}.",
        gaps=unseen(case),
    )


PROGRESS = Rule(
    concludes=("healthy",),
    about="actors",
    family="terminal",
    outcome="healthy",
    detected="In a job of Ray's or of several launchers: calls were made, began or ended between the two captures, a call worked or went on to other lines, or one sleeps.",
    fix="",
    actions=(),
    check=actors_progress,
)

OPEN = Rule(
    concludes=("incomplete", "unknown"),
    about="actors",
    family="terminal",
    outcome="incomplete",
    detected="In a job of Ray's or of several launchers in which nothing moves: a call waits for the world, or something is on its way, and not for long enough to suspect it; or no call waits for another one.",
    fix="",
    actions=(),
    check=actors_open,
    explained_by=("actors_progress",),
)

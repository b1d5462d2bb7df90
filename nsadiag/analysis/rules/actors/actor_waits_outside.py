"""A call that waits for the world outside the job for far longer than such a call ever took."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.actors.stuck import (
    Stuck,
    age_s,
    job_of,
    late_outside,
    patient_graph,
    sleeping,
    stuck_sets,
)
from nsadiag.analysis.relations.actors.words import DOING, standing
from nsadiag.analysis.rules.actors.parts import Root, draft_of
from nsadiag.analysis.rules.rule import Draft, Rule


def actor_waits_outside(case: Case) -> Iterator[Draft | Declined]:
    job, graph, late = case.once(job_of), case.once(patient_graph), late_outside(case)
    moved = len(case.once(stuck_sets)) == 1
    if moved or sleeping(case) or not late:
        longest = (
            f"{len(late)} calls have waited for longer than ever before"
            if late
            else "no call has waited for the world for longer than ever before"
        )
        yield Declined(
            f"{longest}, and {len(job.moved)} calls began or ended in {job.ray.watched_s:.0f} s", job.document
        )
        return
    stand = max(late, key=lambda s: sum(s.key in graph.reached_from(key) for key in graph.nodes))
    what = DOING.get(stand.doing, "something that its stack does not show")
    longest_s = job.longest_s(stand.task) if stand.task else None
    before = f"; its longest call before took {longest_s:.1f} s" if longest_s is not None else ""
    root = Root(
        guilty=(stand.number,),
        keys=(stand.key,),
        stand=stand,
        says=f"{standing(job, stand)} and has waited for {age_s(job, stand):.0f} s for {what}{before}",
    )
    yield draft_of(case, Stuck(graph=graph, within=frozenset(), certainty="suspected"), root)


RULE = Rule(
    concludes=("external_wait",),
    about="actors",
    family="performance",
    detected="In a job of Ray's or of several launchers in which nothing moves: a call waits for something outside the job, or runs and gets nowhere, for two minutes, or ten times as long as such a call ever took.",
    fix="Give the call a timeout, and look at what it waits for.",
    check=actor_waits_outside,
    confused_with=("local_lock_deadlock", "actor_call_cycle"),
)

"""A metric that is logged to a framework on one rank only, where the framework, or a callback that watches it, issues a collective."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.evidence.records import Evidence
from nsadiag.evidence.user_code import is_user
from nsadiag.source.patterns.metrics import Logged, averaged, logged, watched_by
from nsadiag.source.vocabulary import COMPUTES_MEAN, LOGS_MEAN, LOGS_ON_RANK_0


def framework_values(context: Context) -> Iterator[Candidate]:
    """All are in one line of the user's; what some wait in there goes on only where a name is known, and one rank alone reports it."""
    members = context.members()
    if not context.still or not all(context.waits_for_peers(rank) for rank in members):
        return
    kinds = {rank: _kinds_on_stack(context, rank) for rank in members}
    for kind in sorted(set().union(*kinds.values())):
        inside = tuple(r for r in members if kind in kinds[r])
        if len(inside) != 1:
            continue
        for watched, made_at in watched_by(context.program, kind):
            calls = list(logged(context.program, watched))
            certain = next((c for c in calls if c.is_certain), None)
            named = {_named(context, c) for c in calls}
            if certain is not None and named == {*inside}:
                watch = Evidence(
                    claim=f"{kind} is made to watch it: `{made_at.code}`", source=context.cited(made_at)
                )
                collective = f"the collective in {kind}, which watches it ({locations.short(made_at)})"
                yield _candidate(context, inside[0], kind, f"`{watched}`", certain, collective, watch)
        if kind == COMPUTES_MEAN:
            for call in averaged(context.program):
                if call.condition and _named(context, call) == inside[0]:
                    collective = f"the collective by which {LOGS_MEAN}=True takes the mean over all ranks"
                    yield _candidate(context, inside[0], kind, "a metric", call, collective)


def _named(context: Context, call: Logged) -> int | None:
    """The rank on which alone the call is made."""
    return context.cell.world_size - 1 if call.rank == -1 else call.rank


def _kinds_on_stack(context: Context, rank: int) -> set[str]:
    """Classes of libraries whose methods the main thread is in."""
    capture = context.cell.rank(rank).last_capture
    frames = capture.main_frames if capture else []
    names = (f.name.split(".")[:-1] for f in frames if not is_user(f.filename))
    return {part for parts in names for part in parts if part != "<locals>"}


def _candidate(
    context: Context, rank: int, kind: str, metric: str, call: Logged, collective: str, *more: Evidence
) -> Candidate:
    """`metric` is reported on that rank alone, whose main thread is in a method of the class `kind`."""
    blocked = tuple(r for r in context.members() if r != rank)
    guard, at = call.condition, locations.short(call.at)
    behind = f"with {LOGS_ON_RANK_0}=True"
    if guard:
        behind = f"behind `{shown(guard)}` at {locations.short(guard.place)}"
    return Candidate(
        kind=Kind.FLAG,
        proximity=Proximity.FRAMEWORK,
        condition=guard,
        depends_on="rank",
        guilty=(rank,),
        blocked=blocked,
        where=call.at,
        because=f"alone reports {metric} ({at}, {behind}), and so is alone in {collective}",
        evidence=(
            Evidence(claim=f"rank {rank} is in {kind}, and no other rank is", source=context.source_of(rank)),
            Evidence(
                claim=f"{metric} is reported on that rank alone: `{call.at.code}`",
                source=context.cited(call.at),
            ),
            *more,
            context.position(rank),
            context.position(blocked[0]),
        ),
    )

"""A metric that is logged to a framework on one rank only, where a callback that watches it issues a collective."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.evidence.records import Evidence, Place
from nsadiag.evidence.user_code import is_user
from nsadiag.source.patterns.metrics import Logged, logged, watched_by
from nsadiag.source.vocabulary import LOGS_ON_RANK_0


def framework_values(context: Context) -> Iterator[Candidate]:
    """All are in one line of the user's; what some wait in there goes on only where a name is known, and one rank alone reports it."""
    members = context.members()
    if not context.still or not all(context.waits_for_peers(rank) for rank in members):
        return
    kinds = {rank: _kinds_on_stack(context, rank) for rank in members}
    for kind in sorted(set().union(*kinds.values())):
        inside = tuple(r for r in members if kind in kinds[r])
        for watched, made_at in watched_by(context.program, kind) if len(inside) == 1 else ():
            calls = list(logged(context.program, watched))
            certain = next((c for c in calls if c.is_certain), None)
            named = {context.cell.world_size - 1 if c.rank == -1 else c.rank for c in calls}
            if certain is not None and named == {*inside}:
                yield _candidate(context, inside[0], kind, watched, made_at, certain)


def _kinds_on_stack(context: Context, rank: int) -> set[str]:
    """Classes of libraries whose methods the main thread is in."""
    capture = context.cell.rank(rank).last_capture
    frames = capture.main_frames if capture else []
    names = (f.name.split(".")[:-1] for f in frames if not is_user(f.filename))
    return {part for parts in names for part in parts if part != "<locals>"}


def _candidate(
    context: Context, rank: int, kind: str, watched: str, made_at: Place, call: Logged
) -> Candidate:
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
        because=f"alone reports `{watched}` ({at}, {behind}), and so comes alone to the collective in {kind}, which watches it ({locations.short(made_at)})",
        evidence=(
            Evidence(claim=f"rank {rank} is in {kind}, and no other rank is", source=context.source_of(rank)),
            Evidence(
                claim=f"`{watched}` is reported on that rank alone: {call.at.code}",
                source=context.cited(call.at),
            ),
            Evidence(claim=f"{kind} is made to watch it: {made_at.code}", source=context.cited(made_at)),
            context.position(rank),
            context.position(blocked[0]),
        ),
    )

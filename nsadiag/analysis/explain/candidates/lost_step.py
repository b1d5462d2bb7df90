"""Iterations of the training loop in which one rank did no step: its counter advanced, and later led it away from its peers.

Nothing is recorded of such a round: an `except` around the step, or a condition before it, let the rank go on
before the model was called. What tells of it is where the rank came to next, fewer steps after the last time than ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.trips import is_head
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import CallPath
from nsadiag.source.patterns.handlers import swallowing

Ranks = tuple[int, ...]


def lost_steps(context: Context) -> Iterator[Candidate]:
    """Some came to a call that counters alone lead to, after fewer steps than it takes, while the others do a step more."""
    found, anchor = context.divergence, context.anchor
    if found is None or anchor is None:
        return
    sides = (
        (found.guilty, found.others, found.own, found.theirs),
        (found.others, found.guilty, found.theirs, found.own),
    )
    for early, late, call, other in sides:
        if call is None or call.kind != EventKind.COLLECTIVE or call.place is None or len(early) > len(late):
            continue
        # What they are at instead belongs to the next round.
        behind = other is not None or all(context.timelines.count(r) > found.iteration + 1 for r in late)
        if behind and (steps := _steps_between(context, call, found)):
            yield from _early_arrival(context, early, late, call, steps, anchor)
            return


def _steps_between(context: Context, call: TimelineEvent, found: Divergence) -> tuple[int, int] | None:
    """Steps between two visits of that line as it always was, and since the last one; None where visits were irregular."""
    timelines = context.timelines
    visits = [
        tuple(n for n in range(found.iteration) if any(t.at == call.at for t in timelines.iteration(rank, n)))
        for rank in context.members()
    ]
    seen = visits[0]
    if len({*visits}) > 1 or not seen:
        return None
    gaps = {b - a for a, b in itertools.pairwise(seen)}
    gaps = gaps or ({seen[0] + 1} if timelines.are_whole else set())
    return (gaps.pop(), found.iteration - seen[-1]) if len(gaps) == 1 else None


def _early_arrival(
    context: Context, early: Ranks, late: Ranks, call: TimelineEvent, steps: tuple[int, int], anchor: Place
) -> Iterator[Candidate]:
    (usual, since), at = steps, call.place
    if at is None or since >= usual:
        return
    way, step = context.path_to(at, early[:1]), context.call_paths.to(anchor)
    loop = _loop_of_both(context, way, step)
    past = bypasses(context.program, loop, step) if loop else []
    if loop is None or len(past) != 1 or any(g.differs for g in context.differing(way, step)):
        return
    did = f"reached {call.name} at {locations.short(at)} after {count(since, 'step')} instead of the usual {usual}"
    yield Candidate(
        kind=Kind.LOST_STEP,
        proximity=Proximity.STEPS,
        condition=past[0],
        guilty=early,
        blocked=late,
        where=past[0].place,
        because=f"{did}: an iteration of the loop had no step, and the only way past the step in the source is `{shown(past[0])}` ({locations.short(past[0].place)})",
        evidence=(
            context.recorded(early[0], did),
            context.position(early[0]),
            context.position(late[0]),
        ),
    )


def passed_over(context: Context, loop: Condition, stayed: int, left: int) -> Condition | None:
    """The one way past the step for a rank that left the loop with as many batches as the other, of which it stepped on fewer."""
    if not context.timelines.are_whole or context.anchor is None:
        return None
    given = {rank: _batches(context, loop, rank) for rank in (stayed, left)}
    steps = {rank: context.timelines.count(rank) for rank in (stayed, left)}
    if given[left] < given[stayed] or given[left] <= steps[left] or given[stayed] != steps[stayed]:
        return None
    past = bypasses(context.program, loop, context.call_paths.to(context.anchor))
    return past[0] if len(past) == 1 else None


def _batches(context: Context, loop: Condition, rank: int) -> int:
    """The number that the loop's own loader gave the rank."""
    events = context.timelines.events.get(rank, ())
    return sum(bool(e.gave) and e.place is not None and is_head(context, loop, e.place) for e in events)


def _loop_of_both(context: Context, way: CallPath, step: CallPath) -> Condition | None:
    """The innermost loop around the step that the other path is in as well."""
    loops = [g for g in context.around(step) if g.is_loop and context.is_in(way, g)]
    return loops[-1] if loops else None


def bypasses(program: Program, loop: Condition, step: CallPath) -> list[Condition]:
    """Conditions that let a round of the loop go by without coming to the end of that path, and can differ between ranks."""
    found: dict[tuple[str, int], Condition] = {}
    inside = False
    for at in step:
        in_loop = loop.has_in_body(at)
        own = in_loop and not inside
        inside = inside or in_loop
        if not inside:
            continue
        guards = [
            *program.around(at.file, at.line),
            *(g for g in program.jumps_before(at.file, at.line) if _stays(g.leaves, own)),
            *swallowing(program, at, in_loop=own),
        ]
        for guard in guards:
            if guard.differs and not (own and guard.line <= loop.line):
                found[guard.file, guard.line] = guard
    return list(found.values())


def _stays(leaves: str, own: bool) -> bool:
    """Whether such a jump leads on to the loop's next round; `own`: from the loop's own function."""
    return leaves == "continue" if own else leaves in ("continue", "return", "break")

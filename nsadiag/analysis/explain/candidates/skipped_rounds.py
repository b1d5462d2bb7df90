"""Rounds of the training loop in which one rank did no step: its counter went on, and led it away from its peers later.

Nothing is recorded of such a round: an `except` around the step, or a condition before it, let the rank go on
before the model was called. What tells of it is where the rank came to next, fewer steps after the last time than ever.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.analysis.explain.result import Cause, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, held_by, is_in, passed_by
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent, Timelines
from nsadiag.evidence.records import Evidence, Strength
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition, Program
from nsadiag.source.handlers import only_raise, swallowing
from nsadiag.source.model import CallPath
from nsadiag.source.trip_counts import counts_from_same_start

CLASSES = {
    "rank": "rank_conditional_collective",
    "input": "uneven_inputs",
    "data": "data_divergent_control_flow",
}


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A call at which only some have arrived, while the others do a step that these have not done."""

    early: tuple[int, ...]
    late: tuple[int, ...]
    to: TimelineEvent
    usual: int  # steps between two visits of that line, as it always was; 0 where there was none before
    since: int  # steps since the last visit now
    last_ns: int  # when the first of `early` was there last, 0 where it never was


def arrival(timelines: Timelines, ranks: tuple[int, ...]) -> Arrival | None:
    """The first at which they came apart; None where visits were not the same on all ranks, or irregular."""
    found = timelines.first_divergence(ranks)
    if found is None:
        return None
    for early, late, next_, other in (
        (found.guilty, found.others, found.own, found.theirs),
        (found.others, found.guilty, found.theirs, found.own),
    ):
        if next_ is None or next_.kind != Kind.COLLECTIVE or len(early) > len(late):
            continue
        # What they are at instead belongs to the next round.
        behind = other is not None or all(timelines.count(r) > found.iteration + 1 for r in late)
        rounds = _rounds_before(timelines, ranks, next_, found.iteration) if behind else None
        if rounds is not None:
            usual, since = rounds
            visit = timelines.iteration(early[0], found.iteration - since)
            last_ns = max((t.t_ns for t in visit if t.at == next_.at), default=0)
            return Arrival(early=early, late=late, to=next_, usual=usual, since=since, last_ns=last_ns)
    return None


def by_skipped_round(context: Context) -> Explanation | None:
    """Some came to a call that counters alone lead to, after fewer steps than it takes, while the others do a step more.

    Or some left a round before its end, where the source shows no way but an `except` around what the others did next.
    """
    came = arrival(context.timelines, context.members())
    if came and (cause := _came_early(context, came)):
        return cause
    found = context.timelines.first_divergence(context.members())
    return _cut_short(context, found, found.theirs) if found and found.theirs and not found.own else None


def skipped_to_the_end(
    context: Context, *, stayed: tuple[int, ...], left: tuple[int, ...]
) -> Explanation | None:
    """Some went round the training loop to its end as often as the others will, and made fewer steps in it."""
    loop, ranks = _training_loop_left(context, stayed[0], left[0]), (stayed[0], left[0])
    if loop is None or context.anchor is None or len(left) > len(stayed) or not context.timelines.are_whole:
        return None
    steps = [context.timelines.count(rank) for rank in ranks]
    given = [_given(context, loop, rank) for rank in ranks]
    if steps[0] <= steps[1] or any(g.differs for g in context.program.exits_of_loop(loop)):
        return None
    # A rank in a round has been given its batch, and may not have begun its step.
    lost = given[1] - steps[1] > given[0] - steps[0] if all(given) else not loop.differs
    past = ways_past(context.program, loop, context.call_paths.to(context.anchor)) if lost else []
    if len(past) != 1:
        return None
    more = f", of {given[1]} batches that it was given" if all(given) else ""
    did = f"came to the end of the loop at {locations.short(loop.place)} after {steps[1]} steps{more}, while rank {stayed[0]} is in number {steps[0]}"
    return _made(
        context, past[0], left, stayed, did, strength=Strength.STRONG if all(given) else Strength.LIKELY
    )


def _training_loop_left(context: Context, stayed: int, left: int) -> Condition | None:
    """The innermost `for` around the training step that the one is in and the other is not."""
    inside, outside = context.now(stayed), context.now(left)
    around = apart(context.program, inside, outside) if outside else held_by(context.program, inside)
    return next(
        (g for g in reversed(around) if g.kind == "for" and g.is_loop and context.anchored_in(g)), None
    )


def _given(context: Context, loop: Condition, rank: int) -> int:
    """The number of batches that the loop was given, as far as its loader tells."""
    head = f"{loop.file}:{loop.line}:"
    events = context.timelines.events.get(rank, ())
    return sum(t.kind == Kind.DATA and t.gave and t.at.startswith(head) for t in events)


def _cut_short(context: Context, found: Divergence, theirs: TimelineEvent) -> Explanation | None:
    """A rank that went on to the next round, as only an exception can have led it."""
    if context.anchor is None or theirs.place is None:
        return None
    if context.timelines.count(found.guilty[0]) <= found.iteration + 1 or not _was_usual(
        context, found, theirs
    ):
        return None
    way = context.call_paths.to(theirs.place)
    loop = _loop_of_both(context, way, context.call_paths.to(context.anchor))
    past = ways_past(context.program, loop, way) if loop else []
    # Before the step was begun there was another way past all of it.
    if len(past) != 1 or past[0].kind != "except" or not context.call_paths.is_sure(theirs.place):
        return None
    did = f"went on to the next round in iteration {found.iteration + 1}, without {theirs.name or 'backward'} at {locations.short(theirs.place)}"
    return _made(context, past[0], found.guilty, found.others, did, strength=Strength.LIKELY)


def _was_usual(context: Context, found: Divergence, event: TimelineEvent) -> bool:
    """Whether all ranks did that in every iteration before."""
    ranks = (*found.guilty, *found.others)
    before = [context.timelines.iteration(rank, n) for rank in ranks for n in range(found.iteration)]
    return bool(before) and all(any(t.key == event.key for t in each) for each in before)


def _loop_of_both(context: Context, way: CallPath, step: CallPath) -> Condition | None:
    """The innermost loop around the step that the other path is in as well."""
    loops = [g for g in held_by(context.program, step) if g.is_loop and is_in(context.program, way, g)]
    return loops[-1] if loops else None


def _came_early(context: Context, came: Arrival) -> Explanation | None:
    at, usual = came.to.place, came.usual
    if at is None or context.anchor is None:
        return None
    way, step = context.way_to(at, came.early[:1]), context.call_paths.to(context.anchor)
    loop = _loop_of_both(context, way, step)
    past = ways_past(context.program, loop, step) if loop else []
    if loop is None or len(past) != 1 or (usual and came.since >= usual):
        return None
    behind = apart(context.program, way, step)
    if any(g.differs for g in behind) or not (usual or _counters_lead(context, loop, past[0], way, step)):
        return None
    before = f", where it had taken {usual} before" if usual else ""
    did = f"came to {came.to.name} at {locations.short(at)} after {came.since} steps{before}"
    return _made(
        context, past[0], came.early, came.late, did, strength=Strength.STRONG if usual else Strength.WEAK
    )


def _counters_lead(context: Context, loop: Condition, past: Condition, way: CallPath, step: CallPath) -> bool:
    """Whether counters alone lead to the path, by the source.

    With nothing before, its peers may have counted less, and a loop that began elsewhere have other numbers.
    """
    if (
        context.anchor is None
        or not context.call_paths.is_sure(context.anchor)
        or not counts_from_same_start(loop)
    ):
        return False
    exits = [g for g in passed_by(context.program, way, step) if (g.file, g.line) != (past.file, past.line)]
    return not any(g.differs for g in exits) and any(not g.is_loop for g in apart(context.program, way, step))


def _rounds_before(
    timelines: Timelines, ranks: tuple[int, ...], to: TimelineEvent, iteration: int
) -> tuple[int, int] | None:
    """The number of steps between two visits of that line as it always was, 0 where it had no visit, and now.

    None where visits were not the same on all ranks, or irregular.
    """
    visits = [
        tuple(n for n in range(iteration) if any(t.at == to.at for t in timelines.iteration(rank, n)))
        for rank in ranks
    ]
    if len({*visits}) > 1 or not (visits[0] or timelines.are_whole):
        return None
    seen = visits[0]
    if not seen:
        return 0, iteration + 1
    gaps = {b - a for a, b in itertools.pairwise(seen)}
    gaps = gaps or ({seen[0] + 1} if timelines.are_whole else set())
    return (gaps.pop(), iteration - seen[-1]) if len(gaps) == 1 else None


def _made(
    context: Context,
    guard: Condition,
    early: tuple[int, ...],
    late: tuple[int, ...],
    did: str,
    strength: Strength,
) -> Explanation:
    line = guard.place
    return made(
        context,
        Cause(
            cls=CLASSES[guard.provenance], guilty=early, blocked=late, where=line, guard=guard, strength=strength,
            because=f"{did}: it left a round of the loop without its step, and the one way past that in the source is `{shown(guard)}` ({locations.short(line)})",
            evidence=(
                Evidence(claim=f"rank {early[0]} {did}", source=f"{context.cell.rank(early[0]).source}/blackbox.bin"),
                context.stands(early[0]),
                context.stands(late[0]),
                *_raising(context, guard),
            ),
        ),
    )  # fmt: skip


def ways_past(program: Program, loop: Condition, step: CallPath) -> list[Condition]:
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


def _raising(context: Context, guard: Condition) -> tuple[Evidence, ...]:
    """The line that raises what is caught there, if there is but one in the files in which the ranks stand."""
    files = {place.file for rank in context.members() for place in context.now(rank)}
    found = only_raise(context.program, files, guard.test) if guard.kind == "except" else None
    if found is None:
        return ()
    text, file, line = found
    claim = f"`{text}` is the one line there that raises what is caught"
    return (Evidence(claim=claim, source=context.cited(file, line)),)

"""Iterations of the training loop in which one rank did no step: its counter advanced, and later led it away from its peers.

Nothing is recorded of such a round: an `except` around the step, or a condition before it, let the rank go on
before the model was called. What tells of it is where the rank came to next, fewer steps after the last time than ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Basis, Candidate, Kind, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.arrivals import Arrival, arrival
from nsadiag.analysis.relations.call_paths import apart, held_by, is_in, passed_by
from nsadiag.analysis.relations.timeline import Divergence
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import CallPath
from nsadiag.source.patterns.handlers import only_raise, swallowing
from nsadiag.source.trip_counts import counts_from_same_start


def lost_steps(context: Context) -> Iterator[Candidate]:
    """Some came to a call that counters alone lead to, after fewer steps than it takes, while the others do a step more.

    Or some left a round before its end, where the source shows no way but an `except` around what the others did next.
    """
    if context.anchor is None:
        return
    if came := arrival(context.timelines, context.members()):
        yield from _came_early(context, came, context.anchor)
    if (found := context.divergence) and not found.own:
        yield from _cut_short(context, found, context.anchor)


def _came_early(context: Context, came: Arrival, anchor: Place) -> Iterator[Candidate]:
    at, usual = came.to.place, came.usual
    if at is None or (usual and came.since >= usual):
        return
    way, step = context.way_to(at, came.early[:1]), context.call_paths.to(anchor)
    loop = _loop_of_both(context, way, step)
    past = ways_past(context.program, loop, step) if loop else []
    if loop is None or len(past) != 1 or any(g.differs for g in apart(context.program, way, step)):
        return
    if usual or _counters_lead(context, loop, past[0], way, step):
        before = f", where it had taken {usual} before" if usual else ""
        did = f"came to {came.to.name} at {locations.short(at)} after {came.since} steps{before}"
        strength = Strength.STRONG if usual else Strength.WEAK
        yield _candidate(context, past[0], came.early, came.late, did, strength)


def _counters_lead(context: Context, loop: Condition, past: Condition, way: CallPath, step: CallPath) -> bool:
    """Whether counters alone lead to the path, by the source.

    With nothing before, its peers may have counted less, and a loop that began elsewhere have other numbers.
    """
    if not context.call_paths.is_sure(step[-1]) or not counts_from_same_start(loop):
        return False
    exits = [g for g in passed_by(context.program, way, step) if (g.file, g.line) != (past.file, past.line)]
    return not any(g.differs for g in exits) and any(not g.is_loop for g in apart(context.program, way, step))


def _cut_short(context: Context, found: Divergence, anchor: Place) -> Iterator[Candidate]:
    """A rank that went on to the next round, as only an exception can have led it."""
    theirs = found.theirs
    if theirs is None or theirs.place is None or not context.call_paths.is_sure(theirs.place):
        return
    went_on = context.timelines.count(found.guilty[0]) > found.iteration + 1
    if not went_on or not context.timelines.always_did(theirs, found):
        return
    way = context.call_paths.to(theirs.place)
    loop = _loop_of_both(context, way, context.call_paths.to(anchor))
    past = ways_past(context.program, loop, way) if loop else []
    # Before the step was begun there was another way past all of it.
    if len(past) == 1 and past[0].kind == "except":
        did = f"went on to the next round in iteration {found.iteration + 1}, without {theirs.name or 'backward'} at {locations.short(theirs.place)}"
        yield _candidate(context, past[0], found.guilty, found.others, did, Strength.LIKELY)


def lost_before_the_end(context: Context, stayed: tuple[int, ...], left: tuple[int, ...]) -> Candidate | None:
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
    ended = f"came to the end of the loop at {locations.short(loop.place)} after {steps[1]} steps{more}"
    did = f"{ended}, while rank {stayed[0]} is in number {steps[0]}"
    strength = Strength.STRONG if all(given) else Strength.LIKELY
    return _candidate(context, past[0], left, stayed, did, strength, decisive=f"rank {left[0]} {ended}")


def _training_loop_left(context: Context, stayed: int, left: int) -> Condition | None:
    """The innermost `for` around the training step that the one is in and the other is not."""
    inside, outside = context.now(stayed), context.now(left)
    around = apart(context.program, inside, outside) if outside else held_by(context.program, inside)
    loops = [g for g in around if g.kind == "for" and g.is_loop and context.anchored_in(g)]
    return loops[-1] if loops else None


def _given(context: Context, loop: Condition, rank: int) -> int:
    """The number of batches that the loop was given, as far as its loader tells."""
    head = f"{loop.file}:{loop.line}:"
    events = context.timelines.events.get(rank, ())
    return sum(t.kind == EventKind.DATA and t.gave and t.at.startswith(head) for t in events)


def _loop_of_both(context: Context, way: CallPath, step: CallPath) -> Condition | None:
    """The innermost loop around the step that the other path is in as well."""
    loops = [g for g in held_by(context.program, step) if g.is_loop and is_in(context.program, way, g)]
    return loops[-1] if loops else None


def _candidate(
    context: Context,
    past: Condition,
    early: tuple[int, ...],
    late: tuple[int, ...],
    did: str,
    strength: Strength,
    decisive: str = "",
) -> Candidate:
    """`past`: the one way in the source past the step."""
    at = locations.short(past.place)
    return Candidate(
        kind=Kind.LOST_STEP,
        basis=Basis.STEPS,
        condition=past,
        guilty=early,
        blocked=late,
        where=past.place,
        strength=strength,
        decisive=decisive,
        because=f"{did}: it left a round of the loop without its step, and the one way past that in the source is `{shown(past)}` ({at})",
        evidence=(
            context.recorded(early[0], did),
            context.stands(early[0]),
            context.stands(late[0]),
            *_raising(context, past),
        ),
    )


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
    return (Evidence(claim=claim, source=context.cited(locations.place(file, line, None))),)

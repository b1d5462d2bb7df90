"""Iterations of a loop by rank, counted by calls that are made in that loop only."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.relations.call_paths import held_by, stands_behind
from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath
from nsadiag.source.trip_counts import trip_count


def went_round_less(context: Context, loop: Condition, stayed: int, left: int, inside: CallPath) -> bool:
    """By what the two did in the loop and nowhere else; by the iterations that they began, if that is where they train."""
    timelines = context.timelines
    if not timelines.events.get(stayed) or not timelines.events.get(left):
        return stands_behind(context.program, context.now(left), context.now(stayed))
    if context.anchored_in(loop):
        return timelines.count(stayed) > timelines.count(left)
    at = _counted_at(context, loop, inside, stayed)
    if at is None:
        return False
    if any(context.anchored_in(g) for g in held_by(context.program, inside) if g.is_loop):
        # It begins anew in each iteration, in a helper maybe: what was missed in earlier ones did not end it now.
        # Whoever left it may have come to the next forward since.
        ahead = timelines.count(left) - timelines.count(stayed)
        rounds = timelines.was_at_lately(left, at, ahead) if ahead in (0, 1) else 0
        return timelines.was_at_lately(stayed, at) > rounds > 0
    # Who never was in it has not left it.
    return timelines.was_at(stayed, at) > timelines.was_at(left, at) > 0


def _counted_at(context: Context, loop: Condition, inside: CallPath, rank: int) -> Place | None:
    """The line at which what ranks did says how often they went round; None where nothing there is the loop's alone.

    `inside`: where `rank` is in the loop. The innermost of its calls comes first; then whatever it did in the loop's body.
    """
    if at := call_on_the_way(context, loop, inside, rank):
        return at
    did = (t.place for t in context.timelines.events.get(rank, ()) if t.place and loop.holds(t.place))
    return max(did, key=lambda at: context.timelines.was_at(rank, at), default=None)


def call_on_the_way(context: Context, around: Condition, inside: CallPath, rank: int) -> Place | None:
    """The innermost line of the path at which the rank did something that leads there through `around` alone."""
    for depth in range(len(inside), 0, -1):
        if context.timelines.was_at(rank, inside[depth - 1]) and _is_only_in(context, around, inside[:depth]):
            return inside[depth - 1]
    return None


def was_in(context: Context, loop: Condition, rank: int, iteration: int) -> bool:
    """Whether the rank did anything in that iteration which nobody does outside the loop."""
    places = {t.at: t.place for t in context.timelines.iteration(rank, iteration)}.values()
    return any(at and _is_only_in(context, loop, context.call_paths.to(at)) for at in places)


def _is_only_in(context: Context, loop: Condition, way: CallPath) -> bool:
    """Whether no function on the way from the loop is ever called from anywhere else."""
    depth = next((n for n in range(len(way) - 1, -1, -1) if loop.holds(way[n])), None)
    return depth is not None and all(context.call_paths.has_one_caller(at) for at in way[depth + 1 :])


def left_between_rounds(context: Context, outer: Condition, *, stayed: int, left: int) -> bool:
    """Whether `left` went out of `outer`, a loop of a known number of rounds, after whole rounds and before the last.

    Then no loop inside it gave out early: each had gone round as often as ever. What a whole round is,
    earlier visits of the loop tell: each was of whole rounds, the longest of all of them.
    """
    rounds = trip_count(context.program, outer)
    mine, theirs = _visits(context, outer, left), _visits(context, outer, stayed)
    if not context.timelines.are_whole:
        # Of the first that is left in the ring the beginning may have been written over.
        mine, theirs = mine[1:], theirs[1:]
    if not rounds or rounds < 2 or len(mine) < 3 or len(theirs) < 2:
        return False
    # Behind the last thing outside is what was done since: nothing, of who has left.
    *before, last, since = mine
    *others, now = theirs
    if since or now <= last or not all((last, *before, *others)):
        return False
    whole, rest = divmod(max(*before, *others), rounds)
    if rest or not whole or any(visit % whole for visit in (*before, *others)):
        return False
    return last % whole == 0 and last <= whole * (rounds - 1)


def _visits(context: Context, loop: Condition, rank: int) -> list[int]:
    """Numbers of training steps that the rank began between things that it did outside the loop; the last is not over."""
    inside: dict[str, bool | None] = {}
    found, outside = [0], True
    for event in context.timelines.events.get(rank, ()):
        if event.place is None:
            continue
        if event.at not in inside:
            inside[event.at] = _is_inside(context, loop, event.place)
        if inside[event.at]:
            outside = False
            found[-1] += event.at == context.timelines.anchor
        elif inside[event.at] is False:
            found += [] if outside else [0]
            outside = True
    return found


def _is_inside(context: Context, loop: Condition, at: Place) -> bool | None:
    """None of a line in a helper that is called from within the loop and from elsewhere."""
    way = context.call_paths.to(at)
    known = len(way) > 1 or not context.program.scope_of(at.file, at.line).path
    if loop.holds(at) or (known and context.call_paths.is_sure(at)):
        return any(map(loop.holds, way))
    return None

"""Nested loops that a rank has left together: whether the outer one was over, told by how often the training went round in it."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Context
from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.trip_counts import trip_count


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
    if since or now <= last or not before or not all((last, *before, *others)):
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
            # In a helper that is called from within the loop and from elsewhere, it says nothing.
            way = context.call_paths.to(event.place)
            knows = len(way) > 1 or not context.program.scope_of(event.place.file, event.place.line).path
            sure = loop.holds(event.place) or (knows and context.call_paths.is_sure(event.place))
            inside[event.at] = _is_inside(context, loop, event.place) if sure else None
        if inside[event.at] is None:
            continue
        if not inside[event.at]:
            if not outside:
                found.append(0)
            outside = True
            continue
        outside = False
        found[-1] += event.at == context.timelines.anchor
    return found


def _is_inside(context: Context, loop: Condition, at: Place) -> bool:
    return any(map(loop.holds, context.call_paths.to(at)))

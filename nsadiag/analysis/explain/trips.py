"""Iterations of a loop by rank, counted by what the rank did in its body."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.relations.call_paths import is_further
from nsadiag.analysis.relations.timeline import TimelineEvent
from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath


def made_fewer_trips(context: Context, loop: Condition, stayed: int, left: int, inside: CallPath) -> bool:
    """By what the two did in the loop and nowhere else; by the iterations that they began, if that is where they train."""
    timelines, outside = context.timelines, context.path_of(left)
    if not timelines.events.get(stayed) or not timelines.events.get(left):
        ways = (_passed_by, _left_around)
        otherwise = any(way(context, loop, inside, outside) for way in ways)
        return is_further(context.program, outside, inside) and not otherwise
    if context.anchored_in(loop):
        rounds = timelines.count(left)
        entered = rounds > 0 or not _passed_by(context, loop, inside, outside)
        return entered and timelines.count(stayed) > rounds and not _began_anew(context, loop, stayed, rounds)
    at = _counted_at(context, loop, stayed)
    if at is None:
        return _is_past(context, stayed, left)
    if any(context.anchored_in(g) for g in context.around(inside) if g.is_loop):
        # It begins anew in each iteration, in a helper maybe: what was missed in earlier ones did not end it now.
        # Whoever left it may have come to the next forward since.
        ahead = timelines.count(left) - timelines.count(stayed)
        rounds = timelines.was_at_lately(left, at, ahead) if ahead in (0, 1) else 0
        return timelines.was_at_lately(stayed, at) > rounds > 0
    # Who never was in it has not left it.
    return timelines.was_at(stayed, at) > timelines.was_at(left, at) > 0


def _began_anew(context: Context, loop: Condition, rank: int, rounds: int) -> bool:
    """Whether the rank left the loop as well after so many rounds, and is in it once more: as in an outer loop's next round."""
    round_ = context.timelines.iteration(rank, rounds - 1) if rounds else []
    return any(_is_end(context, loop, each) or _is_outside(context, loop, each) for each in round_)


def _is_end(context: Context, loop: Condition, event: TimelineEvent) -> bool:
    """Whether the loop asked for a batch, and there was none."""
    return event.gave is False and event.place is not None and is_head(context, loop, event.place)


def is_head(context: Context, loop: Condition, at: Place) -> bool:
    """The loop's own line, or a helper's that iterates for it."""
    return any((p.file, p.line) == (loop.file, loop.line) for p in (at, *context.call_paths.to(at)))


def _is_outside(context: Context, loop: Condition, event: TimelineEvent) -> bool:
    """Whether it was done where only lines outside of the loop lead to."""
    at, paths = event.place, context.call_paths
    return at is not None and paths.is_unambiguous(at) and not any(map(loop.holds, paths.to(at)))


def _is_past(context: Context, stayed: int, left: int) -> bool:
    """Whether the one that left is further in the source, at a line to which the other has not come as often yet."""
    here, timelines = context.place_of(left), context.timelines
    if here is None or not timelines.are_whole:
        return False
    ahead = timelines.was_at(left, here) > timelines.was_at(stayed, here)
    return ahead and is_further(context.program, context.path_of(left), context.path_of(stayed))


def _left_around(context: Context, loop: Condition, inside: CallPath, outside: CallPath) -> bool:
    """Whether the one outside has left a loop around it as well, which may end differently on some ranks: that is the one, as far as stacks tell."""
    around = [g for g in context.around(inside) if g.is_loop]
    left = [g for g in around[: around.index(loop)] if not context.is_in(outside, g)]
    return any(each.differs for g in left for each in context.program.exits_of_loop(g))


def _passed_by(context: Context, loop: Condition, inside: CallPath, outside: CallPath) -> bool:
    """Whether a condition on the way to the loop may have led the one outside past it."""
    around = context.differing(inside, outside)
    ways = [*around[: around.index(loop)], *context.early_exits(inside, outside)]
    return any(g.differs and not g.is_loop for g in ways)


def _counted_at(context: Context, loop: Condition, rank: int) -> Place | None:
    """The line at which what ranks did says how often they went round: where the rank did most in the loop's body."""
    did = (t.place for t in context.timelines.events.get(rank, ()) if t.place and loop.holds(t.place))
    return max(did, key=lambda at: context.timelines.was_at(rank, at), default=None)

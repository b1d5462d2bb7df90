"""Evidence that a rank has been in a loop: a line that a helper shares with other callers proves nothing."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Context
from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath


def counted_at(context: Context, loop: Condition, inside: CallPath, rank: int) -> Place | None:
    """The line at which what ranks did says how often they went round; None where nothing there is the loop's alone.

    `inside`: where `rank` is in the loop. The innermost of its calls comes first; then whatever it did in the loop's body.
    """
    at = call_on_the_way(context, loop, inside, rank)
    if at is not None:
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
    lines = {t.at: t.place for t in context.timelines.iteration(rank, iteration) if t.place}
    return any(
        at is not None and _is_only_in(context, loop, context.call_paths.to(at)) for at in lines.values()
    )


def _is_only_in(context: Context, loop: Condition, way: CallPath) -> bool:
    """Whether no function on the way from the loop is ever called from anywhere else."""
    depth = next((n for n in range(len(way) - 1, -1, -1) if loop.holds(way[n])), None)
    return depth is not None and all(context.call_paths.has_one_caller(at) for at in way[depth + 1 :])

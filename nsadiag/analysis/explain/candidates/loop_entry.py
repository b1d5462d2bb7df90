"""Whether a rank is known to have been in a loop: a line that a helper shares with other callers proves nothing."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Situation
from nsadiag.analysis.relations.call_paths import Chain
from nsadiag.evidence.records import Place
from nsadiag.source.control import Guard


def counted_at(s: Situation, loop: Guard, inside: Chain, rank: int) -> Place | None:
    """The line at which what ranks did says how often they went round; None where nothing there is the loop's alone.

    `inside`: where `rank` is in the loop. The innermost of its calls comes first; then whatever it did in the loop's body.
    """
    at = call_on_the_way(s, loop, inside, rank)
    if at is not None:
        return at
    did = (t.place for t in s.histories.tokens.get(rank, ()) if t.place and in_body(loop, t.place))
    return max(did, key=lambda at: s.histories.was_at(rank, at), default=None)


def call_on_the_way(s: Situation, around: Guard, inside: Chain, rank: int) -> Place | None:
    """The innermost line of the chain at which the rank did something that leads there through `around` alone."""
    for depth in range(len(inside), 0, -1):
        if s.histories.was_at(rank, inside[depth - 1]) and _is_only_in(s, around, inside[:depth]):
            return inside[depth - 1]
    return None


def was_in(s: Situation, loop: Guard, rank: int, iteration: int) -> bool:
    """Whether the rank did anything in that iteration which nobody does outside the loop."""
    lines = {t.at: t.place for t in s.histories.iteration(rank, iteration) if t.place}
    return any(at is not None and _is_only_in(s, loop, s.chains.to(at)) for at in lines.values())


def in_body(loop: Guard, at: Place) -> bool:
    """Whether the line is between the loop's first and its last."""
    return at.file == loop.file and loop.line <= at.line <= loop.ends


def _is_only_in(s: Situation, loop: Guard, way: Chain) -> bool:
    """Whether no function on the way from the loop is ever called from anywhere else."""
    depth = next((n for n in range(len(way) - 1, -1, -1) if in_body(loop, way[n])), None)
    return depth is not None and all(s.chains.has_one_caller(at) for at in way[depth + 1 :])

"""Loops over a collection that is ordered differently on each rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import common_depth
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath


def iteration_order(context: Context) -> Iterator[Candidate]:
    """Ranks that came from one line in a loop to different collectives, both of which all have made before."""
    found = context.divergence
    if found is None or found.own is None or found.theirs is None:
        return
    loop = _loop_of_both(context, found, found.own, found.theirs)
    if loop is None:
        return
    # Of equal sides, with hardly anything before to compare with, either may be the order that is meant.
    tells = (found.novel and _was_kept(context, found)) or len(found.guilty) != len(found.others)
    one, other, number = found.guilty[0], found.others[0], found.iteration + 1
    own, theirs = (f"{t.name} at {locations.short(p)}" for t in (found.own, found.theirs) if (p := t.place))
    parted = "diverged from the others" if tells else "diverged"
    who = ("it", "the others") if tells else (f"rank {one}", f"rank {other}")
    at = f"the loop `{shown(loop)}` ({locations.short(loop.place)})"
    did = f"ran {own} in iteration {number}, and rank {other} {theirs}; both had made both calls before"
    guilty = found.guilty if tells else context.members()
    yield Candidate(
        kind=Kind.ORDER,
        proximity=Proximity.ORDER,
        condition=loop,
        guilty=guilty,
        blocked=tuple(r for r in context.members() if r not in guilty),
        where=loop.place,
        strength=Strength.STRONG if tells else Strength.WEAK,
        because=f"{parted} in iteration {number} in {at}, which led {who[0]} to {own} where it led {who[1]} to {theirs}: the ranks iterate in different orders",
        evidence=(
            context.recorded(one, did),
            context.position(one),
            context.position(other),
        ),
    )


def _was_kept(context: Context, found: Divergence) -> bool:
    """Whether all made those calls in more than one iteration before: after one, another order is new on either."""
    lines = {t.at for t in (found.own, found.theirs) if t}
    return all(
        sum(lines <= {t.at for t in context.timelines.iteration(rank, n)} for n in range(found.iteration)) > 1
        for rank in (*found.guilty, *found.others)
    )


def order_of(context: Context, ranks: tuple[int, ...]) -> Place | None:
    """The loop that orders the calls of ranks that came the same way to one line, and there wait in different groups."""
    call_paths = [context.call_paths.now(rank) for rank in ranks]
    if not call_paths[0] or len({tuple((p.file, p.line) for p in path) for path in call_paths}) > 1:
        return None
    # In the loop of the training steps each has its calls in the order in which its inner loops put them.
    loops = [g for g in context.around(call_paths[0]) if g.is_loop and not context.anchored_in(g)]
    return loops[0].place if len(loops) == 1 and loops[0].kind == "for" else None


def _loop_of_both(
    context: Context, found: Divergence, own: TimelineEvent, theirs: TimelineEvent
) -> Condition | None:
    """The innermost loop of a line that all came by, if no condition behind that line tells them apart."""
    if own.kind != EventKind.COLLECTIVE or theirs.kind != EventKind.COLLECTIVE:
        return None
    everyone = (*found.guilty, *found.others)
    # A call that some never made before may be one too many.
    if not all(t.place and context.timelines.was_at(r, t.place) for r in everyone for t in (own, theirs)):
        return None
    a, b = _way_to(context, found.guilty, own), _way_to(context, found.others, theirs)
    depth = common_depth(a, b)
    if depth == min(len(a), len(b)):
        return None
    loops = [g for g in context.around(a[:depth]) if g.is_loop and not context.anchored_in(g)]
    if not loops:
        return None
    conditions = itertools.chain.from_iterable(
        (*context.differing(x, y), *context.early_exits(x, y)) for x, y in ((a, b), (b, a))
    )
    return None if any(g.differs or "%" in g.test for g in conditions) else loops[-1]


def _way_to(context: Context, ranks: tuple[int, ...], event: TimelineEvent) -> CallPath:
    """As the stack of a rank that still stands there has it; else as the source has it, if that leaves no choice."""
    at = event.place
    if at is None:
        return ()
    way = context.path_to(at, ranks)
    return way if way in map(context.path_of, ranks) or context.call_paths.is_unambiguous(at) else ()

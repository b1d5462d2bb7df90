"""Backwards that reduce gradients on some ranks and only accumulate them on others."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent
from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.patterns.switches import entered_by, switched_by

WORDS = {True: "accumulates its gradients", False: "reduces its gradients"}


def gradient_sync(context: Context) -> Iterator[Candidate]:
    """The first iteration in which ranks do not agree on it, if they had not diverged before."""
    found = context.timelines.first_unequal_sync(context.members())
    if found is None or (context.divergence and _precedes(context.divergence, found[1])):
        return
    number, begun = found
    accumulate = tuple(r for r, event in begun.items() if event.unsynced)
    reduce = tuple(r for r, event in begun.items() if not event.unsynced)
    # Of equal sides the one that does not come to the reduction is missed.
    guilty, others = (reduce, accumulate) if len(reduce) < len(accumulate) else (accumulate, reduce)
    even = (
        " (half of the ranks do each: it is unknown which is intended)"
        if len(accumulate) == len(reduce)
        else ""
    )
    boundary = _boundary_between(context, begun[guilty[0]].place, begun[others[0]].place)
    does = WORDS[guilty == accumulate]
    yield Candidate(
        kind=Kind.GRADIENT_SYNC,
        proximity=Proximity.CALLS,
        condition=boundary,
        guilty=guilty,
        blocked=others,
        where=boundary.place if boundary else _switch(context, begun, accumulate[0], guilty),
        because=f"{does} in backward {number + 1}, in which the others do not{even}",
        decisive=f"rank {guilty[0]} {does} in backward {number + 1}, and rank {others[0]} does not",
        evidence=tuple(
            context.recorded(r, f"{WORDS[bool(t.unsynced)]} in backward {number + 1}")
            for r, t in sorted(begun.items())[:8]
        ),
    )


def _switch(
    context: Context, begun: dict[int, TimelineEvent], accumulates: int, guilty: tuple[int, ...]
) -> Place | None:
    """The line that switches the reduction off, or decides on it; of those who alone reduce, their forward."""
    unsynced = locations.of_text(begun[accumulates].unsynced)
    decided = unsynced and (switched_by(context.program, unsynced) or entered_by(context.program, unsynced))
    return decided or (unsynced if accumulates in guilty else begun[guilty[0]].place)


def _precedes(divergence: Divergence, begun: dict[int, TimelineEvent]) -> bool:
    """Whether the ranks had diverged before those forwards."""
    own, theirs = divergence.own, divergence.theirs
    if own is not None:
        return own.t_ns < begun[divergence.guilty[0]].t_ns
    return theirs is not None and theirs.t_ns < begun[divergence.others[0]].t_ns


def _boundary_between(context: Context, one: Place | None, other: Place | None) -> Condition | None:
    """The branch that leads to one forward and not to the other, where they are two."""
    if one is None or other is None or one == other:
        return None
    return next(
        iter(context.differing(context.call_paths.to(one), context.call_paths.to(other))),
        None,
    )

"""FSDP units that ranks gather or reduce in different orders, or not at all, within one iteration."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity
from nsadiag.analysis.explain.candidates.first_divergence import deciding
from nsadiag.analysis.explain.context import Context
from nsadiag.evidence.ring.blackbox import Kind as EventKind


def units(context: Context) -> Iterator[Candidate]:
    """The first iteration in which the units that ranks run are not the same."""
    members = context.members()
    found = context.timelines.first_divergence(members, (EventKind.UNIT,))
    last = min((context.timelines.count(rank) for rank in members), default=0) - 1
    # The last iteration of a rank may not be over: there nothing is missing yet.
    if found is None or (found.iteration == last and not (found.own and found.theirs)):
        return
    one, other, number = found.guilty[0], found.others[0], found.iteration + 1
    own, theirs = (event.name if event else "no further unit" for event in (found.own, found.theirs))
    around = context.differing(context.path_of(one), context.path_of(other))
    yield Candidate(
        kind=Kind.MODULES,
        proximity=Proximity.UNITS,
        condition=deciding(around),
        guilty=found.guilty,
        blocked=found.others,
        where=context.place_of(one),
        module=(found.own or found.theirs or found.common).name.partition(" ")[2],
        because=f"ran other modules in iteration {number}: {own}, where the others ran {theirs}",
        evidence=tuple(
            context.recorded(rank, f"ran {ran} in iteration {number}, after {found.common.name}")
            for rank, ran in ((one, own), (other, theirs))
        ),
    )

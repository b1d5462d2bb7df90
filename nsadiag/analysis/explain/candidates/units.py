"""FSDP units that ranks gather or reduce in different orders, or not at all, within one iteration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Basis, Candidate, Kind
from nsadiag.analysis.explain.candidates.first_divergence import deciding
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.relations.call_paths import apart
from nsadiag.analysis.relations.timeline import suspects
from nsadiag.evidence.ring.blackbox import Kind as EventKind

Series = dict[int, tuple[str, ...]]


def units(context: Context) -> Iterator[Candidate]:
    members = context.members()
    count = min((context.timelines.count(r) for r in members), default=0)
    for number in range(count):
        series = {r: tuple(context.timelines.series(r, EventKind.UNIT, number)) for r in members}
        length = min(len(v) for v in series.values())
        # The last iteration of a rank may not be over.
        compared = set(series.values()) if number < count - 1 else {v[:length] for v in series.values()}
        if any(series.values()) and len(compared) > 1:
            yield from _candidate(context, number, series)
            return


def _candidate(context: Context, number: int, series: Series) -> Iterator[Candidate]:
    known = {tuple(context.timelines.series(r, EventKind.UNIT, n)) for r in series for n in range(number)}
    guilty, novel = suspects(series, known)
    undecided = not novel and len(guilty) in (0, len(series) / 2)
    skipped = _in_backward(context, number, tuple(series)) if undecided else ()
    guilty = skipped or guilty
    rest = tuple(r for r in sorted(series) if r not in guilty)
    if not guilty or not rest:
        return
    at, own, other = _first_unequal(series[guilty[0]], series[rest[0]])
    one, another = context.now(guilty[0]), context.now(rest[0])
    around = apart(context.program, one, another)
    because = f"ran other modules in iteration {number + 1}: {own}, where the others had {other}"
    if skipped:
        around = [g for g in apart(context.program, another, one) if not g.is_loop]
        because = f"passed by a module in iteration {number + 1}: it went on to backward, where the others had {other}"
        own, other = other, own
    condition = deciding(around) or context.choice_in_forward()
    yield Candidate(
        kind=Kind.MODULES,
        basis=Basis.UNITS,
        condition=condition,
        guilty=guilty,
        blocked=rest,
        where=condition.place if skipped and condition else context.here(guilty[0]),
        module=own.partition(" ")[2] or other.partition(" ")[2],
        because=because,
        evidence=tuple(
            context.recorded(r, f"in iteration {number + 1}: {', '.join(v[max(0, at - 2) : at + 2])}")
            for r, v in sorted(series.items())[:8]
        ),
    )


def _first_unequal(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[int, str, str]:
    """The first index at which two series differ, and what either has there."""
    pairs_of_both = enumerate(itertools.zip_longest(mine, theirs, fillvalue="nothing more"))
    return next((at, own, other) for at, (own, other) in pairs_of_both if own != other)


def _in_backward(context: Context, number: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that are through with the iteration's forward when others are not: those run units that the first passed by.

    Calls are paired by number, whatever they are: two ranks that diverge have then issued as many.
    """
    found = tuple(r for r in sorted(ranks) if int(EventKind.BACKWARD) in context.timelines.kinds(r, number))
    return found if len(found) < len(ranks) else ()

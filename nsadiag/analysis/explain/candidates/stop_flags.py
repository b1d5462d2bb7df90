"""Stop flags of frameworks: a line of the user's that ends the training on some ranks only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsadiag.analysis.explain.candidate import Basis, Candidate, Kind, shown
from nsadiag.analysis.explain.candidates.loop_exit import ASKED_TO_STOP
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.evidence.ring.blackbox import Phase
from nsadiag.evidence.ring.reader import Event
from nsadiag.source.control import Condition, Program

Rounds = tuple[int, int]  # backwards that were begun, and batches that the training's loader was asked for


@dataclass(frozen=True, kw_only=True)
class _Stop:
    """The newest flag that a rank set, if it has not trained since."""

    flag: str
    at: Place
    step: int
    times: int  # that it was set at that line


def stop_flags(context: Context) -> Iterator[Candidate]:
    """Set on some ranks and not on others, which have begun a round of training that the first never will."""
    members = context.members()
    stops = {r: stop for r in members if (stop := _last_stop(context.cell.rank(r)))}
    stopped = tuple(sorted(stops))
    trains = tuple(r for r in members if r not in stops)
    if not stopped or not trains or len({(stop.at, stop.step) for stop in stops.values()}) > 1:
        return
    stop = stops[stopped[0]]
    condition, depends = _decides(context.program, stop.at)
    asked = condition is not None and bool(ASKED_TO_STOP.search(condition.test))
    if depends not in ("rank", "data") or (asked and any(context.doing(r) == "gone" for r in stopped)):
        return
    if _went_on(context, stop, trains, stopped):
        yield _candidate(context, stop, stopped, trains, condition, depends)


def _went_on(context: Context, stop: _Stop, trains: tuple[int, ...], stopped: tuple[int, ...]) -> bool:
    """Whether each of the others has begun a round that the stopped ones never will, and set no flag as often."""
    begun = {r: _begun(context.cell.rank(r), stop.step) for r in (*trains, *stopped)}
    if any(_times(context.cell.rank(r), stop.at) >= stop.times for r in trains):
        return False
    return all(_is_ahead(begun[other], begun[r]) for other in trains for r in stopped)


def _candidate(
    context: Context,
    stop: _Stop,
    stopped: tuple[int, ...],
    trains: tuple[int, ...],
    condition: Condition | None,
    depends: str,
) -> Candidate:
    guilty, others = (stopped, trains) if len(stopped) <= len(trains) else (trains, stopped)
    at, behind = locations.short(stop.at), ""
    if condition:
        behind = f" behind `{shown(condition)}` ({locations.short(condition.place)})"
    set_it = f"set {stop.flag} at {at}{behind} after {stop.step} steps"
    because = f"{set_it}, and left the training; rank {context.cell.names(trains)} did not, and trains on"
    if guilty == trains:
        because = f"did not set {stop.flag} and trains on, while the others {set_it}, and left the training"
    did = dict.fromkeys(stopped[:4], f"set {stop.flag} at {at} after {stop.step} steps, and has begun no backward since")  # fmt: skip
    did |= dict.fromkeys(trains[:4], "has not set it, and has begun a round more")
    return Candidate(
        kind=Kind.FLAG,
        basis=Basis.FRAMEWORK,
        condition=condition,
        depends_on=depends,
        guilty=guilty,
        blocked=others,
        where=stop.at,
        because=because,
        evidence=(
            *(context.recorded(r, what) for r, what in did.items()),
            context.stands(stopped[0]),
            context.stands(trains[0]),
        ),
    )


def _last_stop(rank: RankEvidence) -> _Stop | None:
    stops = _events_of(rank, EventKind.STOP)
    if not stops:
        return None
    last, trained = stops[-1], [e for e in _events_of(rank, EventKind.BACKWARD) if e.phase == Phase.BEGIN]
    at = locations.of_text(last.site)
    if at is None or (trained and trained[-1].sequence > last.sequence):
        return None
    return _Stop(flag=last.name, at=at, step=last.step, times=_times(rank, at))


def _events_of(rank: RankEvidence, *kinds: EventKind) -> list[Event]:
    events = rank.recording.events
    return list(rank.recording.decode(events[np.isin(events["kind"], kinds)]))


def _times(rank: RankEvidence, at: Place) -> int:
    return sum(e.site.startswith(f"{at.file}:{at.line}:") for e in _events_of(rank, EventKind.STOP))


def _begun(rank: RankEvidence, step: int) -> Rounds:
    """Since the rank had made that many steps."""
    led: Counter[str] = Counter()  # backwards, by the loader that was asked last before
    asked: Counter[str] = Counter()
    backwards, loader = 0, ""
    for event in _events_of(rank, EventKind.BACKWARD, EventKind.DATA):
        if event.phase != Phase.BEGIN:
            continue
        late = event.step >= step
        if event.kind == EventKind.DATA:
            loader = event.name + event.site
            asked[loader] += late
        else:
            led[loader] += 1
            backwards += late
    # Validation between two steps may ask its own after the next training batch was fetched ahead.
    return backwards, asked[led.most_common(1)[0][0]] if led else 0


def _is_ahead(one: Rounds, other: Rounds) -> bool:
    """It may wait for its peers before the backward of that round."""
    return one[0] > other[0] or (one[0] == other[0] and one[1] > other[1])


def _decides(program: Program, at: Place) -> tuple[Condition | None, str]:
    """The innermost condition that can differ between ranks; else what the flag's new value depends on."""
    guards = [*program.jumps_before(at.file, at.line), *program.around(at.file, at.line)]
    differ = [g for g in guards if g.provenance in ("rank", "data") and not g.is_loop and g.leaves != "raise"]
    # A branch on the rank explains why only some set it, whatever their data are.
    decides = next((g for g in differ if g.provenance == "rank"), differ[-1] if differ else None)
    return decides, decides.provenance if decides else program.assigned_at(at) or ""

"""A line of the user's that told a framework to end the training on some ranks, while the others trained on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from nsadiag.analysis.explain.candidates.loop_exit import ASKED_TO_STOP
from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.analysis.explain.result import Cause, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Event
from nsadiag.source.control import Condition, Program

CLASSES = {"rank": "rank_conditional_collective", "data": "data_divergent_control_flow"}
Rounds = tuple[int, int]  # backwards that were begun, and batches that the training's loader was asked for


@dataclass(frozen=True, kw_only=True)
class _Stop:
    """The newest flag that a rank set, if it has not trained since."""

    flag: str
    at: Place
    step: int
    times: int  # that it was set at that line


def by_stop_flag(context: Context) -> Explanation | None:
    """Set on some ranks and not on others, which have begun a round of training that the first never will."""
    members = context.members()
    stops = {r: stop for r in members if (stop := _last_stop(context.cell.rank(r)))}
    stopped = tuple(sorted(stops))
    trains = tuple(r for r in members if r not in stops)
    if not stopped or not trains or len({(stop.at, stop.step) for stop in stops.values()}) > 1:
        return None
    stop = stops[stopped[0]]
    if not _went_on(context, stop, trains, stopped):
        return None
    guard, depends = _decides(context.program, stop.at)
    asked = guard is not None and bool(ASKED_TO_STOP.search(guard.test))
    if depends not in CLASSES or (asked and any(context.doing(r) == "gone" for r in stopped)):
        return None
    return _of_stop(context, stop, stopped, trains, guard, CLASSES[depends])


def _went_on(context: Context, stop: _Stop, trains: tuple[int, ...], stopped: tuple[int, ...]) -> bool:
    """Whether each of the others has begun a round that the stopped ones never will, and set no flag as often."""
    begun = {r: _begun(context.cell.rank(r), stop.step) for r in (*trains, *stopped)}
    if any(_times(context.cell.rank(r), stop.at) >= stop.times for r in trains):
        return False
    return all(_is_ahead(begun[other], begun[r]) for other in trains for r in stopped)


def _of_stop(
    context: Context,
    stop: _Stop,
    stopped: tuple[int, ...],
    trains: tuple[int, ...],
    guard: Condition | None,
    cls: str,
) -> Explanation:
    guilty, others = (stopped, trains) if len(stopped) <= len(trains) else (trains, stopped)
    behind = f" behind `{shown(guard)}` ({locations.short(guard.place)})" if guard else ""
    set_it = f"set {stop.flag} at {locations.short(stop.at)}{behind} after {stop.step} steps"
    because = f"{set_it}, and left the training; rank {context.cell.names(trains)} did not, and trains on"
    if guilty == trains:
        because = f"did not set {stop.flag} and trains on, while the others {set_it}, and left the training"
    return made(
        context,
        Cause(
            cls=cls, guilty=guilty, blocked=others, where=stop.at, guard=guard, strength=Strength.STRONG, because=because,
            evidence=(
                *(Evidence(claim=f"rank {r} set {stop.flag} at {locations.short(stop.at)} after {stop.step} steps, and has begun no backward since", source=f"{context.cell.rank(r).source}/blackbox.bin") for r in stopped[:4]),
                *(Evidence(claim=f"rank {r} has not set it, and has begun a round more", source=f"{context.cell.rank(r).source}/blackbox.bin") for r in trains[:4]),
                context.stands(stopped[0]),
                context.stands(trains[0]),
            ),
        ),
    )  # fmt: skip


def _last_stop(rank: RankEvidence) -> _Stop | None:
    stops = _events_of(rank, Kind.STOP)
    if not stops:
        return None
    last, trained = stops[-1], [e for e in _events_of(rank, Kind.BACKWARD) if e.phase == Phase.BEGIN]
    at = locations.of_text(last.site)
    if at is None or (trained and trained[-1].sequence > last.sequence):
        return None
    return _Stop(flag=last.name, at=at, step=last.step, times=_times(rank, at))


def _events_of(rank: RankEvidence, *kinds: Kind) -> list[Event]:
    events = rank.recording.events
    return list(rank.recording.decode(events[np.isin(events["kind"], kinds)]))


def _times(rank: RankEvidence, at: Place) -> int:
    return sum(e.site.startswith(f"{at.file}:{at.line}:") for e in _events_of(rank, Kind.STOP))


def _begun(rank: RankEvidence, step: int) -> Rounds:
    """Since the rank had made that many steps."""
    led: Counter[str] = Counter()  # backwards, by the loader that was asked last before
    asked: Counter[str] = Counter()
    backwards, loader = 0, ""
    for event in _events_of(rank, Kind.BACKWARD, Kind.DATA):
        if event.phase != Phase.BEGIN:
            continue
        late = event.step >= step
        if event.kind == Kind.DATA:
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

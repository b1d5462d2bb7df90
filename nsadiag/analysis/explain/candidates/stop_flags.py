"""Stop flags of frameworks: a line of the user's that ends the training on some ranks only."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.candidates.loop_exit import ASKED_TO_STOP
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.timeline import TimelineEvent
from nsadiag.evidence.phrases import count, these
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.source.control import Condition, Program


def stop_flags(context: Context) -> Iterator[Candidate]:
    """Set on some ranks after their last backward, at one line and in one step, and not on others, which have trained on."""
    events = {r: context.timelines.events.get(r, []) for r in context.members()}
    stops = {r: stop for r, mine in events.items() if (stop := _last_stop(mine))}
    stopped, trains = tuple(stops), tuple(r for r in events if r not in stops)
    if not trains or len({(stop.at, stop.step) for stop in stops.values()}) != 1:
        return
    stop = stops[stopped[0]]
    if (at := stop.place) is None:
        return
    rounds = {r: _rounds_since(stop, mine) for r, mine in events.items()}
    if min(rounds[r] for r in trains) <= max(rounds[r] for r in stopped):
        return
    condition, depends = _deciding(context.program, at)
    asked = condition is not None and bool(ASKED_TO_STOP.search(condition.test))
    if depends not in ("rank", "data") or (asked and any(context.doing(r) == "gone" for r in stopped)):
        return
    behind = f" behind `{shown(condition)}` ({locations.short(condition.place)})" if condition else ""
    set_it, after = f"set {stop.name} at {locations.short(at)}", f"after {count(stop.step, 'step')}"
    guilty, others = (stopped, trains) if len(stopped) <= len(trains) else (trains, stopped)
    on = "continues" if len(trains) == 1 else "continue"
    because = (
        f"{set_it}{behind} {after}, and left the training loop; {these(trains)} did not, and {on} to train"
    )
    if guilty == trains:
        because = f"did not set {stop.name} and {on} to train, while the others {set_it}{behind} {after}, and left the training loop"
    yield Candidate(
        kind=Kind.FLAG,
        proximity=Proximity.FRAMEWORK,
        condition=condition,
        depends_on=depends,
        guilty=guilty,
        blocked=others,
        where=at,
        because=because,
        evidence=(
            *(context.recorded(r, f"{set_it} {after}, and has begun no backward since") for r in stopped[:4]),
            *(
                context.recorded(
                    r, f"has not set {stop.name} since its last backward, and continues to train"
                )
                for r in trains[:4]
            ),
            context.position(stopped[0]),
            context.position(trains[0]),
        ),
    )


def _last_stop(events: list[TimelineEvent]) -> TimelineEvent | None:
    """The newest flag that the rank set, if it has begun no backward since."""
    last = next((e for e in reversed(events) if e.kind in (EventKind.STOP, EventKind.BACKWARD)), None)
    return last if last and last.kind == EventKind.STOP else None


def _rounds_since(stop: TimelineEvent, events: list[TimelineEvent]) -> int:
    """Batches and backwards that the rank has begun since it had made as many steps."""
    begins = (EventKind.DATA, EventKind.BACKWARD)
    return sum(event.kind in begins and event.step >= stop.step for event in events)


def _deciding(program: Program, at: Place) -> tuple[Condition | None, str]:
    """The innermost condition that can differ between ranks; else what the flag's new value depends on."""
    guards = [*program.jumps_before(at.file, at.line), *program.around(at.file, at.line)]
    differ = [g for g in guards if g.provenance in ("rank", "data") and not g.is_loop and g.leaves != "raise"]
    # A branch on the rank explains why only some set it, whatever their data are.
    decides = next((g for g in differ if g.provenance == "rank"), differ[-1] if differ else None)
    return decides, decides.provenance if decides else program.assigned_at(at) or ""

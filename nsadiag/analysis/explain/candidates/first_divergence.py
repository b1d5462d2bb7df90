"""The first iteration in which ranks did not do the same, or ran other FSDP units, and the loop or branch that led some elsewhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, Rejection, shown
from nsadiag.analysis.explain.candidates.branch import guilty_side
from nsadiag.analysis.explain.candidates.loop_exit import left_loop, uniform
from nsadiag.analysis.explain.candidates.lost_step import bypasses
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath

# A lot that ranks draw from generators of their own: of two, neither is the odd one.
DRAWS = re.compile(r"\brandom\b|\brng\b|\b(rand|randn|randint|bernoulli|uniform)\(|generator", re.IGNORECASE)


def first_divergence(context: Context) -> Iterator[Candidate | Rejection]:
    """A loop that the guilty left, else the condition on which what they did, and the others did not, depends."""
    found = context.divergence
    if found is None or _is_usual(context, found):
        return
    own_at, theirs_at = _place_of(found.own), _place_of(found.theirs)
    if own_at is None and theirs_at is None:
        return
    paths = _paths(context, found)
    # An optimizer's step has no line, and is behind such a loop all the same.
    behind = own_at is not None or (found.theirs is not None and found.common.at == found.theirs.at)
    both = (paths.theirs, paths.own)
    loops = list(left_loop(context, found.others, found.guilty, both, found.iteration)) if behind else []
    yield from loops
    if any(isinstance(each, Candidate) for each in loops):
        return
    condition, entered = _entered(context, paths) if theirs_at is None else _passed(context, found, paths)
    if condition is not None and condition.kind != "except":
        yield from _candidate(context, *_sides(context, found, condition, entered), condition)
    else:
        yield from _rejected(context, paths)


def _rejected(context: Context, paths: _Paths) -> Iterator[Rejection]:
    """The conditions that lie between what the ranks did: one that can differ would have been chosen."""
    one, other = paths.own, paths.theirs
    for a, b in ((one, other), (other, one)):
        for each in (*context.differing(a, b), *context.early_exits(a, b)):
            if not each.differs:
                yield uniform(each)
            elif each.kind == "except":
                yield Rejection(condition=each, because="only handles an exception")


def _is_usual(context: Context, found: Divergence) -> bool:
    """Whether the ranks have run different lines there all along: that is how the job is meant."""
    at, was_at = _place_of(found.own), context.timelines.was_at
    return at is not None and was_at(found.guilty[0], at) > 1 and was_at(found.others[0], at) == 0


def _place_of(event: TimelineEvent | None) -> Place | None:
    return event.place if event else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Paths:
    """Call paths to what ranks did where their timelines first differ."""

    own: CallPath  # of the guilty; where they did nothing, to where the iteration began
    theirs: CallPath
    common: CallPath  # to the last thing that they did alike
    again: bool  # the others did that once more, in a loop within the iteration


def _paths(context: Context, found: Divergence) -> _Paths:
    anchor = context.call_paths.to(found.anchor.place) if found.anchor.place else ()
    common = context.call_paths.to(found.common.place) if found.common.place else anchor
    own_at, theirs_at = _place_of(found.own), _place_of(found.theirs)
    own = context.call_paths.to(own_at) if own_at else anchor
    if found.theirs is None or theirs_at is None:
        return _Paths(own=own, theirs=anchor, common=common, again=False)
    again = found.common.at == found.theirs.at
    if again and not context.call_paths.is_unambiguous(theirs_at):
        again, common = False, anchor  # or once more in a helper, which tells nothing of the way there
    return _Paths(own=own, theirs=context.call_paths.to(theirs_at), common=common, again=again)


def _entered(context: Context, paths: _Paths) -> tuple[Condition | None, bool]:
    """The condition that led the guilty to a call where the others began the next iteration; and whether they are in it."""
    within = context.differing(paths.own, paths.theirs)
    # What stands in a loop decides: the others went into it as well, as far as anyone knows.
    branches = [g for g in within if g.differs and not g.is_loop]
    # The others may have come as far, and turned back before that line.
    exits = [g for g in context.early_exits(paths.own, paths.theirs) if g.differs]
    if condition := next(iter([*branches, *exits]), None) or deciding(within):
        return condition, True
    # They were at the next iteration's forward already, which the guilty passed by.
    after = context.differing(paths.theirs, paths.own)[::-1]
    return deciding(after + context.early_exits(paths.theirs, paths.own)), False


def _passed(context: Context, found: Divergence, paths: _Paths) -> tuple[Condition | None, bool]:
    """The condition by which the guilty missed what the others did; and whether they are in it."""
    exits = context.early_exits(paths.theirs, paths.own if paths.again else paths.common)
    within = context.differing(paths.own, paths.theirs) if _place_of(found.own) else []
    inner = context.differing(paths.theirs, paths.common)[::-1] + exits
    # Whoever did not go round at all more likely never came to the loop.
    inner = inner if paths.again else sorted(inner, key=lambda g: g.is_loop)
    near = inner if paths.again else [g for g in inner if not g.is_loop]
    chosen = deciding(near) or deciding(inner) or deciding(within)
    return chosen, chosen is not None and chosen in within


def deciding(guards: list[Condition]) -> Condition | None:
    """The first that can differ between ranks."""
    return next((g for g in guards if g.differs), None)


def _sides(
    context: Context, found: Divergence, guard: Condition, entered: bool
) -> tuple[Divergence, tuple[int, ...], tuple[int, ...], bool]:
    """The divergence, the guilty, the others, and whether the guilty are in the branch, by what the condition says."""
    guilty, others = found.guilty, found.others
    if guard.provenance == "rank" and len(guilty) == len(others):
        inside, outside = (guilty, others) if entered else (others, guilty)
        guilty = guilty_side(context, guard, inside, outside)
        return found, guilty, tuple(r for r in context.members() if r not in guilty), guilty == inside
    if _others_strayed(found, guard, entered):
        return dataclasses.replace(found, own=found.theirs, theirs=found.own), others, guilty, not entered
    return found, guilty, others, entered


def _others_strayed(found: Divergence, guard: Condition, entered: bool) -> bool:
    """Whether of two equal sides the other one left the common course; `entered`: the guilty are in the branch."""
    if len(found.guilty) != len(found.others):
        return False
    if entered:
        return bool(guard.leaves)  # the others went past the exit, to what they wait in
    is_call = found.theirs is not None and found.theirs.kind == EventKind.COLLECTIVE and found.theirs.place
    return bool(is_call) and not (found.novel or guard.leaves)


def _candidate(
    context: Context,
    found: Divergence,
    guilty: tuple[int, ...],
    others: tuple[int, ...],
    entered: bool,
    condition: Condition,
) -> Iterator[Candidate]:
    in_modules = condition.provenance == "data" and context.in_forward(condition)
    own, number = found.own, found.iteration + 1
    did, theirs = _what(own), _what(found.theirs)
    at = f"in iteration {number} at `{shown(condition)}` ({locations.short(condition.place)})"
    because = f"diverged from the others {at}: {'it' if len(guilty) == 1 else 'they'} {did} where the others {theirs}"
    blamed, blocked = guilty, others
    if len(guilty) == len(others) and DRAWS.search(condition.test):
        blamed, blocked = tuple(sorted((*guilty, *others))), ()
        names = context.cell.names
        because = f"diverged {at}, where each draws a random number of its own: rank {names(guilty)} {did} where rank {names(others)} {theirs}"
    yield Candidate(
        kind=Kind.MODULES if in_modules else Kind.BRANCH,
        proximity=Proximity.CALLS,
        condition=condition,
        guilty=blamed,
        blocked=blocked,
        where=(_place_of(own) if entered else None) or condition.place,
        because=because,
        evidence=(
            context.recorded(guilty[0], f"{did}, and rank {others[0]} {theirs}, in iteration {number}"),
            context.position(others[0]),
        ),
    )


def _what(event: TimelineEvent | None) -> str:
    if event is None or event.place is None:
        return "went on to the next iteration"
    return f"ran {event.name or 'backward'} at {locations.short(event.place)}"


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
    path = context.path_of(one)
    condition = deciding(context.differing(path, context.path_of(other))) or _passing(context, path)
    guilty, blocked = found.guilty, found.others
    because = f"ran other modules in iteration {number}: {own}, where the others ran {theirs}"
    if condition and len(guilty) == len(blocked) and DRAWS.search(condition.test):
        each, names = f"each draws a random number of its own at `{shown(condition)}`", context.cell.names
        because = f"ran other modules in iteration {number}, as {each} ({locations.short(condition.place)}): {own} on rank {names(guilty)}, where rank {names(blocked)} ran {theirs}"
        guilty, blocked = tuple(sorted((*guilty, *blocked))), ()
    yield Candidate(
        kind=Kind.MODULES,
        proximity=Proximity.UNITS,
        condition=condition,
        guilty=guilty,
        blocked=blocked,
        where=context.place_of(one),
        module=(found.own or found.theirs or found.common).name.partition(" ")[2],
        because=because,
        evidence=tuple(
            context.recorded(rank, f"ran {ran} in iteration {number}, after {found.common.name}")
            for rank, ran in ((one, own), (other, theirs))
        ),
    )


def _passing(context: Context, path: CallPath) -> Condition | None:
    """The one condition by which the innermost loop around the line goes on without coming to it."""
    loop = next((each for each in reversed(context.around(path)) if each.is_loop), None) if path else None
    past = bypasses(context.program, loop, path) if loop else []
    return past[0] if len(past) == 1 else None

"""Branches in which some ranks wait and others do not: on the rank, or on data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import common_depth
from nsadiag.evidence.phrases import all_of
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.spans import rank_names
from nsadiag.source.control import Condition

Ranks = tuple[int, ...]
DUE_CALLS = 3  # two equal intervals are a habit


def branches(context: Context) -> Iterator[Candidate]:
    """Some wait in a collective behind a condition that the others, at other lines, are not behind."""
    for waiting, others in context.pairs():
        if found := _on_rank(context, waiting, others) or _passed(context, waiting, others):
            yield found
        if condition := _on_data(context, waiting[0], others[0]):
            yield _data_branch(context, condition, waiting, others)


def _on_rank(context: Context, waiting: Ranks, others: Ranks) -> Candidate | None:
    a, b = waiting[0], others[0]
    one = context.path_of(a)
    around = context.differing(one, context.path_of(b))
    branch = next((g for g in around if _is_on_rank(context, g, a, b)), None)
    if branch is None:
        return None
    if not context.waits_for_peers(b) and (
        _is_called_elsewhere(context, one[-1], branch) or _has_own_call(context, a, b)
    ):
        return None
    inside = (r for r in context.members() if context.is_in(context.path_of(r), branch))
    return _rank_branch(context, branch, waiting, tuple(sorted({*waiting, *inside})))


def _passed(context: Context, waiting: Ranks, others: Ranks) -> Candidate | None:
    """Others that a return behind a condition on the rank led past a line at which they never were."""
    one, other = context.path_of(waiting[0]), context.path_of(others[0])
    if not one or not context.waits_for_peers(others[0]) or context.timelines.was_at(others[0], one[-1]):
        return None
    exits = context.early_exits(one, other)
    jumped = next((g for g in exits if g.provenance == "rank"), None)
    return _rank_branch(context, jumped, waiting, waiting) if jumped else None


def _is_on_rank(context: Context, guard: Condition, waiting: int, other: int) -> bool:
    """Whether the rank decides who comes through.

    A loop over what the rank decides counts only where nobody trains in it, and where the waiting one did something on
    its way that the other never did: else it is its length that matters.
    """
    if guard.provenance != "rank" or not guard.is_loop:
        return guard.provenance == "rank"
    was_at, path = context.timelines.was_at, context.path_of(waiting)
    # What it is at may be too new for its recording.
    done = [*(place for place in path if was_at(waiting, place)), path[-1]]
    return not context.anchored_in(guard) and any(not was_at(other, place) for place in done)


def _is_called_elsewhere(context: Context, at: Place, guard: Condition) -> bool:
    """Whether the function of the branch has the same call elsewhere, for ranks that have not come to it yet."""
    names = context.program.calls_on(at.file, at.line)
    scope = context.program.scope_of(guard.file, guard.line)
    lines = context.program.lines_calling(names, scope)
    held = [g for g in context.program.around(guard.file, guard.line + 1) if g.line == guard.line]
    ends = held[0].branch_ends if held else guard.ends
    return any(not guard.line <= line <= ends for line in lines)


def _has_own_call(context: Context, waiting: int, other: int) -> bool:
    """Whether what is waited for was brought before, time and again, from another line: each side has a call of its own."""
    at, was_at = context.place_of(waiting), context.timelines.was_at
    return at is not None and was_at(waiting, at) > 1 and was_at(other, at) == 0


def _rank_branch(context: Context, guard: Condition, waiting: Ranks, inside: Ranks) -> Candidate | None:
    members = context.members()
    outside = tuple(r for r in members if r not in inside)
    if not outside:
        return None
    guilty = guilty_side(context, guard, inside, outside)
    entered = set(guilty) <= set(inside)
    made = () if entered else _elsewhere(context, waiting[0])[0]
    got, way = "alone got" if entered else "did not get", "past" if guard.leaves else "through"
    if guard.branch == "orelse":
        got, way = "alone went" if entered else "did not go", "by the else of"
    through = f"{got} {way} `{shown(guard)}` at {locations.short(guard.place)}"
    return Candidate(
        kind=Kind.BRANCH,
        proximity=Proximity.PLACE,
        condition=guard,
        guilty=guilty,
        blocked=tuple(r for r in members if r not in guilty),
        where=(_line_behind(context, guard, guilty[0]) if entered else None) or guard.place,
        because=f"{through} to a collective that {all_of(len(members))} must call",
        decisive=f"{rank_names(made)} of other groups made that call in this step" if made else "",
        strength=Strength.LIKELY if context.may_have_gone_on(waiting[0]) else Strength.STRONG,
        evidence=(
            context.position(waiting[0]),
            *(context.position(r) for r in outside[:1] if r not in waiting),
        ),
    )


def _line_behind(context: Context, guard: Condition, rank: int) -> Place | None:
    """The rank's line; in a module's forward, the line behind the condition that called it."""
    path, scope = context.path_of(rank), context.program.scope_of(guard.file, guard.line)
    scopes = [context.program.scope_of(p.file, p.line) for p in path]
    behind = [n for n, p in enumerate(path) if guard.holds(p) or scopes[n] == scope]
    beyond = range(max(behind, default=len(path)) + 1, len(path))
    forward = next((n for n in beyond if scopes[n].path.endswith(".forward")), None)
    return path[forward - 1] if forward else context.place_of(rank)


def guilty_side(context: Context, guard: Condition, inside: Ranks, outside: Ranks) -> Ranks:
    """The smaller side of the branch; of equal ones the one that something else tells.

    In this order: the rank that the condition names, the side that fewer ranks of other groups are with, and the
    steps at which the call was made before.
    """
    if len(inside) != len(outside):
        return min(inside, outside, key=len)
    named = max(context.members()) if guard.rank == -1 else guard.rank
    if named is not None and (named in inside or named in outside):
        return inside if named in inside else outside
    made, left_out = _elsewhere(context, inside[0])
    if len(made) != left_out:
        return outside if len(made) > left_out else inside
    return outside if guard.leaves or _was_due(context, inside, outside) else inside


def _elsewhere(context: Context, waiting: int) -> tuple[Ranks, int]:
    """Ranks of other groups that made the call of this step, and the number of those that have gone on without it."""
    at, events = context.place_of(waiting), context.timelines.events
    if at is None or not events.get(waiting):
        return (), 0
    step = events[waiting][-1].step
    others = [one.rank for one in context.cell.ranks if one.rank not in context.members()]
    made = {r for r in others if step in _steps_of(context, r, at)}
    beyond = {r for r in others if events.get(r) and events[r][-1].step > step}
    return tuple(sorted(made)), len(beyond - made)


def _was_due(context: Context, inside: Ranks, outside: Ranks) -> bool:
    """Whether all made this call together before, at equal intervals of steps, and it was time for the next."""
    at = context.place_of(inside[0])
    if at is None:
        return False
    made = _steps_of(context, inside[0], at)
    gaps = {later - earlier for earlier, later in itertools.pairwise(made)}
    together = all(_steps_of(context, rank, at) == made for rank in inside)
    left_out = all(_steps_of(context, rank, at) == made[:-1] for rank in outside)
    return len(made) >= DUE_CALLS and len(gaps) == 1 and together and left_out


def _steps_of(context: Context, rank: int, at: Place) -> list[int]:
    """The steps in which the rank made a call at that line."""
    events = context.timelines.events.get(rank, ())
    return sorted({event.step for event in events if event.place and event.place.is_at(at)})


def _on_data(context: Context, waiting: int, other: int) -> Condition | None:
    """The outermost condition on a rank's own data that the waiting rank is in and the other, never at that line, is not."""
    inside, outside = context.path_of(waiting), context.path_of(other)
    # Of a rank that is gone nothing says which of these conditions it met last.
    if not inside or not outside or not context.waits_for_peers(other):
        return None
    if context.timelines.was_at(other, inside[-1]) or common_depth(inside, outside) == 0:
        return None
    around = context.differing(inside, outside)
    # By stacks alone nobody can tell on what a loop was left.
    recorded = all(context.timelines.events.get(rank) for rank in (waiting, other))
    return next(
        (
            g
            for g in around
            if g.kind != "except"
            and g.provenance == "data"
            and (not g.is_loop or (recorded and not context.anchored_in(g)))
        ),
        None,
    )


def _data_branch(context: Context, condition: Condition, waiting: Ranks, others: Ranks) -> Candidate:
    guilty = waiting if len(waiting) <= len(others) else others
    at = locations.short(condition.place)
    return Candidate(
        kind=Kind.MODULES if context.in_forward(condition) else Kind.BRANCH,
        proximity=Proximity.SOURCE,
        condition=condition,
        guilty=guilty,
        blocked=tuple(r for r in context.members() if r not in guilty),
        where=context.place_of(waiting[0]) if guilty == waiting else condition.place,
        strength=Strength.LIKELY,
        because=f"diverged from the others at `{shown(condition)}` ({at}), which depends on this rank's own data",
        evidence=(context.position(waiting[0]), context.position(others[0])),
    )

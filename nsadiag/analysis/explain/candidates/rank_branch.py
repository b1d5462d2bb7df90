"""Branches on the rank, and what is put into a collection behind one: who stands in a collective that others never come to."""

from __future__ import annotations

from nsadiag.analysis.explain.candidates.loop_entry import call_on_the_way
from nsadiag.analysis.explain.candidates.loop_exit import went_round_less
from nsadiag.analysis.explain.clusters import pairs
from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.analysis.explain.result import Cause, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, is_in, passed_by
from nsadiag.evidence.records import Place, Strength
from nsadiag.source.control import Condition
from nsadiag.source.iterables import Filling, fillings, ways_in
from nsadiag.source.model import CallPath


def by_rank_branch(context: Context) -> Explanation | None:
    """Some wait in a collective behind a condition on the rank that the others never pass."""
    for a, b in pairs(context):
        one, other = context.now(a[0]), context.now(b[0])
        inside = next(
            (g for g in apart(context.program, one, other) if _is_rank_branch(context, g, a[0], b[0])), None
        )
        if inside and (
            context.waits_for_peers(b[0])
            or not (_meets_later(context, one[-1], inside) or _has_met(context, a[0], b[0]))
        ):
            given = given_to(context, inside, a[0], b[0])
            if found := _of_rank_branch(context, inside, a, _all_in(context, inside, a), given):
                return found
        at = one[-1] if one else None
        if at is None or not context.waits_for_peers(b[0]) or context.timelines.was_at(b[0], at):
            continue
        jumped = next((g for g in passed_by(context.program, one, other) if g.provenance == "rank"), None)
        if jumped:
            return _of_rank_branch(context, jumped, a, a)
    return None


def _is_rank_branch(context: Context, guard: Condition, waiting: int, other: int) -> bool:
    """A loop over what the rank decides counts only where nobody trains in it: else it is its length that matters.

    Of what is put into a collection on some ranks only, the rank has to be in just that.
    """
    if not guard.is_loop:
        return guard.provenance == "rank"
    if context.anchored_in(guard):
        return False
    if any(f.guard for f in fillings(context.program, guard)):
        return given_to(context, guard, waiting, other) is not None
    return guard.provenance == "rank"


def given_to(context: Context, loop: Condition, waiting: int, other: int) -> Filling | None:
    """The element that the loop goes over on the waiting rank alone, if that is where it stands; None where it may be there for something else."""
    found = fillings(context.program, loop) if loop.is_loop else []
    inside = context.now(waiting)
    mine, known = ways_in(found, context.program, loop, inside)
    alone = [f for f in mine if f.guard]
    if alone and len({f.guard and (f.guard.line, f.guard.branch) for f in mine}) == 1:
        return alone[0]
    if alone:
        # The others have one of the kind as well.
        return alone[0] if went_round_less(context, loop, waiting, other, inside) else None
    if mine or known:
        return None
    # The source does not say what it is: where the other never was, or went round less, it has none of it.
    unknown = [f for f in found if f.guard and not f.known]
    at = call_on_the_way(context, loop, inside, waiting)
    never = at is not None and not context.timelines.was_at(other, at)
    return (
        unknown[0] if unknown and (never or went_round_less(context, loop, waiting, other, inside)) else None
    )


def may_part(context: Context, guard: Condition, inside: CallPath) -> bool:
    """Whether a loop can be why ranks part there: not where one rank has more to go over, and the path is in what all have."""
    found = fillings(context.program, guard) if guard.is_loop else []
    if not any(f.guard for f in found):
        return True
    mine, known = ways_in(found, context.program, guard, inside)
    return all(f.guard for f in mine) if mine else not known


def _all_in(context: Context, guard: Condition, at_least: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks in the branch, and those that have been there as often and went on."""
    found = {*at_least, *(r for r in context.members() if is_in(context.program, context.now(r), guard))}
    at = call_on_the_way(context, guard, context.now(at_least[0]), at_least[0])
    if at is not None:
        times = context.timelines.was_at(at_least[0], at)
        found |= {r for r in context.members() if context.timelines.was_at(r, at) >= times}
    return tuple(sorted(found))


def _meets_later(context: Context, at: Place, guard: Condition) -> bool:
    """Whether the function of the branch has the same call elsewhere, for ranks that have not come to it yet."""
    names = context.program.calls_on(at.file, at.line)
    scope = context.program.scope_of(guard.file, guard.line)
    lines = context.program.lines_calling(names, scope)
    held = [g for g in context.program.around(guard.file, guard.line + 1) if g.line == guard.line]
    ends = held[0].branch_ends if held else guard.ends
    return any(not guard.line <= line <= ends for line in lines)


def _has_met(context: Context, waiting: int, other: int) -> bool:
    """Whether what is waited for was brought before, time and again, from another line: each side has a call of its own."""
    at = context.here(waiting)
    return (
        at is not None
        and context.timelines.was_at(waiting, at) > 1
        and context.timelines.was_at(other, at) == 0
    )


def _of_rank_branch(
    context: Context,
    guard: Condition,
    waiting: tuple[int, ...],
    inside: tuple[int, ...],
    given: Filling | None = None,
) -> Explanation | None:
    members = context.members()
    outside = tuple(r for r in members if r not in inside)
    if not outside:
        return None
    decides = given.guard if given and given.guard else guard
    guilty = singled_out(context, decides, inside, outside)
    entered = set(guilty) <= set(inside)
    where = (_leads_there(context, guard, guilty[0]) if entered else None) or decides.place
    beyond = "past" if decides.leaves else "through"
    what = f"alone goes {beyond}" if entered else f"does not go {beyond}"
    through = f"{what} `{shown(decides)}` at {locations.short(decides.place)}, which depends on the rank, to"
    if given:
        has, comes = ("alone has", "so comes to") if entered else ("does not have", "so never comes to")
        through = f"{has} what {locations.short(given.at)} puts into the loop `{shown(guard)}` ({locations.short(guard.place)}) behind `{shown(decides)}`, and {comes}"
    blocked = tuple(r for r in members if r not in guilty)
    return made(
        context,
        Cause(
            cls="rank_conditional_collective", guilty=guilty, blocked=blocked, where=where, guard=decides, strength=Strength.STRONG,
            because=f"{through} a collective that all of {len(members)} ranks belong to",
            evidence=(context.stands(waiting[0]), *(context.stands(r) for r in outside[:1] if r not in waiting)),
        ),
    )  # fmt: skip


def _leads_there(context: Context, guard: Condition, rank: int) -> Place | None:
    """The rank's line; in a module's forward, the line behind the condition that called it."""
    path, scope = context.now(rank), context.program.scope_of(guard.file, guard.line)
    scopes = [context.program.scope_of(p.file, p.line) for p in path]
    behind = [n for n, p in enumerate(path) if guard.holds(p) or scopes[n] == scope]
    forward = [n for n in range(max(behind, default=len(path)) + 1, len(path)) if scopes[n].path.endswith(".forward")]  # fmt: skip
    return path[forward[0] - 1] if forward else context.here(rank)


def singled_out(
    context: Context, guard: Condition, inside: tuple[int, ...], outside: tuple[int, ...]
) -> tuple[int, ...]:
    """The smaller side of the branch; of equal sides the one with the rank that the condition names."""
    if len(inside) != len(outside):
        return min(inside, outside, key=len)
    named = max(context.members()) if guard.rank == -1 else guard.rank
    if named is not None and (named in inside or named in outside):
        return inside if named in inside else outside
    return outside if guard.leaves else inside

"""Branches in which some ranks wait and others do not: on the rank, on a collection filled by rank, on data."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Basis, Candidate, Kind, shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.trips import call_on_the_way, went_round_less
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, common_depth, is_in, passed_by
from nsadiag.evidence.records import Place, Strength
from nsadiag.source.control import Condition
from nsadiag.source.iterables import Filling, fillings, ways_in
from nsadiag.source.model import CallPath

Ranks = tuple[int, ...]


def branches(context: Context) -> Iterator[Candidate]:
    """Some wait in a collective behind a condition that the others, at other lines, are not behind."""
    for waiting, others in context.pairs():
        if found := _on_rank(context, waiting, others) or _passed(context, waiting, others):
            yield found
        if condition := _on_data(context, waiting[0], others[0]):
            yield _data_branch(context, condition, waiting, others)


def _on_rank(context: Context, waiting: Ranks, others: Ranks) -> Candidate | None:
    a, b = waiting[0], others[0]
    one = context.now(a)
    around = apart(context.program, one, context.now(b))
    branch = next((g for g in around if _is_on_rank(context, g, a, b)), None)
    if branch is None:
        return None
    if not context.waits_for_peers(b) and (_meets_later(context, one[-1], branch) or _has_met(context, a, b)):
        return None
    return _rank_branch(context, branch, waiting, _all_in(context, branch, waiting), given_to(context, branch, a, b))  # fmt: skip


def _passed(context: Context, waiting: Ranks, others: Ranks) -> Candidate | None:
    """Others that a return behind a condition on the rank led past a line at which they never were."""
    one, other = context.now(waiting[0]), context.now(others[0])
    if not one or not context.waits_for_peers(others[0]) or context.timelines.was_at(others[0], one[-1]):
        return None
    exits = passed_by(context.program, one, other)
    jumped = next((g for g in exits if g.provenance == "rank"), None)
    return _rank_branch(context, jumped, waiting, waiting) if jumped else None


def _is_on_rank(context: Context, guard: Condition, waiting: int, other: int) -> bool:
    """A loop over what the rank decides counts only where nobody trains in it: else it is its length that matters.

    Of what is put into a collection on some ranks only, the rank has to be in just that.
    """
    if guard.is_loop and context.anchored_in(guard):
        return False
    if guard.is_loop and any(f.guard for f in fillings(context.program, guard)):
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
    unknown = [f for f in found if f.guard and not f.known]
    if mine or known or not unknown:
        return None
    # The source does not say what it is: where the other never was, or went round less, it has none of it.
    at = call_on_the_way(context, loop, inside, waiting)
    never = at is not None and not context.timelines.was_at(other, at)
    return unknown[0] if never or went_round_less(context, loop, waiting, other, inside) else None


def may_part(context: Context, guard: Condition, inside: CallPath) -> bool:
    """Whether a loop can be why ranks diverge there: not where one rank has more to go over, and the path is in what all have."""
    found = fillings(context.program, guard) if guard.is_loop else []
    if not any(f.guard for f in found):
        return True
    mine, known = ways_in(found, context.program, guard, inside)
    return all(f.guard for f in mine) if mine else not known


def _all_in(context: Context, guard: Condition, at_least: Ranks) -> Ranks:
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
    at, was_at = context.here(waiting), context.timelines.was_at
    return at is not None and was_at(waiting, at) > 1 and was_at(other, at) == 0


def _rank_branch(
    context: Context, guard: Condition, waiting: Ranks, inside: Ranks, given: Filling | None = None
) -> Candidate | None:
    members = context.members()
    outside = tuple(r for r in members if r not in inside)
    if not outside:
        return None
    decides = given.guard if given and given.guard else guard
    guilty = singled_out(context, decides, inside, outside)
    entered = set(guilty) <= set(inside)
    at = locations.short(decides.place)
    if given:
        has, comes = ("alone has", "so comes to") if entered else ("does not have", "so never comes to")
        through = f"{has} what {locations.short(given.at)} puts into the loop `{shown(guard)}` ({locations.short(guard.place)}) behind `{shown(decides)}`, and {comes}"
    else:
        goes = f"{'alone goes' if entered else 'does not go'} {'past' if decides.leaves else 'through'}"
        through = f"{goes} `{shown(decides)}` at {at}, which depends on the rank, to"
    return Candidate(
        kind=Kind.BRANCH,
        basis=Basis.PLACE,
        condition=decides,
        guilty=guilty,
        blocked=tuple(r for r in members if r not in guilty),
        where=(_leads_there(context, guard, guilty[0]) if entered else None) or decides.place,
        because=f"{through} a collective that all of {len(members)} ranks belong to",
        evidence=(
            context.stands(waiting[0]),
            *(context.stands(r) for r in outside[:1] if r not in waiting),
        ),
    )


def _leads_there(context: Context, guard: Condition, rank: int) -> Place | None:
    """The rank's line; in a module's forward, the line behind the condition that called it."""
    path, scope = context.now(rank), context.program.scope_of(guard.file, guard.line)
    scopes = [context.program.scope_of(p.file, p.line) for p in path]
    behind = [n for n, p in enumerate(path) if guard.holds(p) or scopes[n] == scope]
    beyond = range(max(behind, default=len(path)) + 1, len(path))
    forward = next((n for n in beyond if scopes[n].path.endswith(".forward")), None)
    return path[forward - 1] if forward else context.here(rank)


def singled_out(context: Context, guard: Condition, inside: Ranks, outside: Ranks) -> Ranks:
    """The smaller side of the branch; of equal sides the one with the rank that the condition names."""
    if len(inside) != len(outside):
        return min(inside, outside, key=len)
    named = max(context.members()) if guard.rank == -1 else guard.rank
    if named is not None and (named in inside or named in outside):
        return inside if named in inside else outside
    return outside if guard.leaves else inside


def _on_data(context: Context, waiting: int, other: int) -> Condition | None:
    """The outermost condition on a rank's own data that the waiting rank is in and the other, never at that line, is not."""
    inside, outside = context.now(waiting), context.now(other)
    # Of a rank that is gone nothing says which of these conditions it met last.
    if not inside or not outside or not context.waits_for_peers(other):
        return None
    if context.timelines.was_at(other, inside[-1]) or common_depth(inside, outside) == 0:
        return None
    around = apart(context.program, inside, outside)
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
        basis=Basis.SOURCE,
        condition=condition,
        guilty=guilty,
        blocked=tuple(r for r in context.members() if r not in guilty),
        where=context.here(waiting[0]) if guilty == waiting else condition.place,
        strength=Strength.LIKELY,
        because=f"diverged from the others at `{shown(condition)}` ({at}), which depends on this rank's own data",
        evidence=(context.stands(waiting[0]), context.stands(others[0])),
    )

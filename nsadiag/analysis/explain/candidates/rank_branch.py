"""Branches on the rank, and what is put into a collection behind one: who stands in a collective that others never come to."""

from __future__ import annotations

from nsadiag.analysis.explain.candidates.loop_entry import call_on_the_way
from nsadiag.analysis.explain.candidates.loop_exit import went_round_less
from nsadiag.analysis.explain.clusters import pairs
from nsadiag.analysis.explain.context import Divergence, Situation
from nsadiag.analysis.explain.result import Case, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, is_in, passed_by
from nsadiag.evidence.records import Place, Strength
from nsadiag.source.control import Condition
from nsadiag.source.iterables import Filling, fillings, ways_in
from nsadiag.source.model import CallPath


def by_rank_branch(s: Situation) -> Divergence | None:
    """Some wait in a collective behind a condition on the rank that the others never pass."""
    for a, b in pairs(s):
        one, other = s.now(a[0]), s.now(b[0])
        inside = next((g for g in apart(s.program, one, other) if _is_rank_branch(s, g, a[0], b[0])), None)
        if inside and (
            s.waits_for_peers(b[0]) or not (_meets_later(s, one[-1], inside) or _has_met(s, a[0], b[0]))
        ):
            given = given_to(s, inside, a[0], b[0])
            if found := _of_rank_branch(s, inside, a, _all_in(s, inside, a), given):
                return found
        at = one[-1] if one else None
        if at is None or not s.waits_for_peers(b[0]) or s.histories.was_at(b[0], at):
            continue
        jumped = next((g for g in passed_by(s.program, one, other) if g.origin == "rank"), None)
        if jumped:
            return _of_rank_branch(s, jumped, a, a)
    return None


def _is_rank_branch(s: Situation, guard: Condition, waiting: int, other: int) -> bool:
    """A loop over what the rank decides counts only where nobody trains in it: else it is its length that matters.

    Of what is put into a collection on some ranks only, the rank has to be in just that.
    """
    if not guard.is_loop:
        return guard.origin == "rank"
    if s.anchored_in(guard):
        return False
    if any(f.guard for f in fillings(s.program, guard)):
        return given_to(s, guard, waiting, other) is not None
    return guard.origin == "rank"


def given_to(s: Situation, loop: Condition, waiting: int, other: int) -> Filling | None:
    """The element that the loop goes over on the waiting rank alone, if that is where it stands; None where it may be there for something else."""
    found = fillings(s.program, loop) if loop.is_loop else []
    inside = s.now(waiting)
    mine, known = ways_in(found, s.program, loop, inside)
    alone = [f for f in mine if f.guard]
    if alone and len({f.guard and (f.guard.line, f.guard.branch) for f in mine}) == 1:
        return alone[0]
    if alone:
        # The others have one of the kind as well.
        return alone[0] if went_round_less(s, loop, waiting, other, inside) else None
    if mine or known:
        return None
    # The source does not say what it is: where the other never was, or went round less, it has none of it.
    unknown = [f for f in found if f.guard and not f.known]
    at = call_on_the_way(s, loop, inside, waiting)
    never = at is not None and not s.histories.was_at(other, at)
    return unknown[0] if unknown and (never or went_round_less(s, loop, waiting, other, inside)) else None


def may_part(s: Situation, guard: Condition, inside: CallPath) -> bool:
    """Whether a loop can be why ranks part there: not where one rank has more to go over, and the chain is in what all have."""
    found = fillings(s.program, guard) if guard.is_loop else []
    if not any(f.guard for f in found):
        return True
    mine, known = ways_in(found, s.program, guard, inside)
    return all(f.guard for f in mine) if mine else not known


def _all_in(s: Situation, guard: Condition, at_least: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks in the branch, and those that have been there as often and went on."""
    found = {*at_least, *(r for r in s.members() if is_in(s.program, s.now(r), guard))}
    at = call_on_the_way(s, guard, s.now(at_least[0]), at_least[0])
    if at is not None:
        times = s.histories.was_at(at_least[0], at)
        found |= {r for r in s.members() if s.histories.was_at(r, at) >= times}
    return tuple(sorted(found))


def _meets_later(s: Situation, at: Place, guard: Condition) -> bool:
    """Whether the function of the branch has the same call elsewhere, for ranks that have not come to it yet."""
    names = s.program.calls_on(at.file, at.line)
    scope = s.program.scope_of(guard.file, guard.line)
    lines = s.program.lines_calling(names, scope)
    held = [g for g in s.program.around(guard.file, guard.line + 1) if g.line == guard.line]
    ends = held[0].branch_ends if held else guard.ends
    return any(not guard.line <= line <= ends for line in lines)


def _has_met(s: Situation, waiting: int, other: int) -> bool:
    """Whether what is waited for was brought before, time and again, from another line: each side has a call of its own."""
    at = s.here(waiting)
    return at is not None and s.histories.was_at(waiting, at) > 1 and s.histories.was_at(other, at) == 0


def _of_rank_branch(
    s: Situation,
    guard: Condition,
    waiting: tuple[int, ...],
    inside: tuple[int, ...],
    given: Filling | None = None,
) -> Divergence | None:
    members = s.members()
    outside = tuple(r for r in members if r not in inside)
    if not outside:
        return None
    decides = given.guard if given and given.guard else guard
    guilty = singled_out(s, decides, inside, outside)
    entered = set(guilty) <= set(inside)
    where = (_leads_there(s, guard, guilty[0]) if entered else None) or decides.place
    beyond = "past" if decides.leaves else "through"
    what = f"alone goes {beyond}" if entered else f"does not go {beyond}"
    through = f"{what} `{shown(decides)}` at {locations.short(decides.place)}, which depends on the rank, to"
    if given:
        has, comes = ("alone has", "so comes to") if entered else ("does not have", "so never comes to")
        through = f"{has} what {locations.short(given.at)} puts into the loop `{shown(guard)}` ({locations.short(guard.place)}) behind `{shown(decides)}`, and {comes}"
    blocked = tuple(r for r in members if r not in guilty)
    return made(
        s,
        Case(
            cls="rank_conditional_collective", guilty=guilty, blocked=blocked, where=where, guard=decides, strength=Strength.STRONG,
            because=f"{through} a collective that all of {len(members)} ranks belong to",
            evidence=(s.stands(waiting[0]), *(s.stands(r) for r in outside[:1] if r not in waiting)),
        ),
    )  # fmt: skip


def _leads_there(s: Situation, guard: Condition, rank: int) -> Place | None:
    """The rank's line; in a module's forward, the line behind the condition that called it."""
    chain, scope = s.now(rank), s.program.scope_of(guard.file, guard.line)
    scopes = [s.program.scope_of(p.file, p.line) for p in chain]
    behind = [n for n, p in enumerate(chain) if guard.holds(p) or scopes[n] == scope]
    forward = [n for n in range(max(behind, default=len(chain)) + 1, len(chain)) if scopes[n].path.endswith(".forward")]  # fmt: skip
    return chain[forward[0] - 1] if forward else s.here(rank)


def singled_out(
    s: Situation, guard: Condition, inside: tuple[int, ...], outside: tuple[int, ...]
) -> tuple[int, ...]:
    """The smaller side of the branch; of equal sides the one with the rank that the condition names."""
    if len(inside) != len(outside):
        return min(inside, outside, key=len)
    named = max(s.members()) if guard.rank == -1 else guard.rank
    if named is not None and (named in inside or named in outside):
        return inside if named in inside else outside
    return outside if guard.leaves else inside

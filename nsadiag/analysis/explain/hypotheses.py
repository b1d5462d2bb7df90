"""Ways in which ranks part, each tried on the same context; the first that the evidence bears out is the answer."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from nsadiag.analysis.explain.candidates.exhausted_data import by_loader
from nsadiag.analysis.explain.candidates.framework_values import by_value_told_alone
from nsadiag.analysis.explain.candidates.iteration_order import by_order
from nsadiag.analysis.explain.candidates.loop_exit import left_loop
from nsadiag.analysis.explain.candidates.majority_sides import other_side_strayed
from nsadiag.analysis.explain.candidates.rank_branch import by_rank_branch, may_part, singled_out
from nsadiag.analysis.explain.candidates.skipped_rounds import by_skipped_round, skipped_to_the_end
from nsadiag.analysis.explain.candidates.stop_flags import by_stop_flag
from nsadiag.analysis.explain.clusters import pairs
from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.analysis.explain.result import Cause, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, parted_at, passed_by
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent, suspects
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath
from nsadiag.source.patterns.switches import entered_by, switched_by

# A lot that ranks draw from generators of their own: of two, neither is the odd one.
DRAWS = re.compile(r"\brandom\b|\brng\b|\b(rand|randn|randint|bernoulli|uniform)\(|generator", re.IGNORECASE)


def by_end_of_loop(context: Context) -> Explanation | None:
    """Some wait inside a loop that others have left, fewer times round."""
    for a, b in pairs(context):
        if not context.waits_for_peers(b[0]):
            continue
        if found := skipped_to_the_end(context, stayed=a, left=b) or left_loop(context, stayed=a, left=b):
            return found
    return None


@dataclass(frozen=True, kw_only=True)
class _Paths:
    """Call paths to what ranks did where their timelines first differ."""

    own: CallPath  # of the guilty; where they did nothing, to where the iteration began
    theirs: CallPath
    common: CallPath  # to the last thing that they did alike
    again: bool  # the others did that once more, in a loop within the iteration


def by_history(context: Context) -> Explanation | None:
    """An iteration in which a rank did not do what the others did, found before the place where it showed."""
    found = context.timelines.first_divergence(context.members())
    if found is None or _is_usual(context, found):
        return None
    own_at, theirs_at = _place_of(found.own), _place_of(found.theirs)
    if own_at is None and theirs_at is None:
        return None
    paths = _paths(context, found)
    # An optimizer's step has no line, and is behind such a loop all the same.
    behind = own_at is not None or (found.theirs is not None and found.common.at == found.theirs.at)
    if behind and (
        loop := left_loop(
            context,
            stayed=found.others,
            left=found.guilty,
            call_paths=(paths.theirs, paths.own),
            iteration=found.iteration,
        )
    ):
        return loop
    guard, entered = _entered(context, paths) if theirs_at is None else _passed(context, found, paths)
    if guard is None or guard.kind == "except":
        return None
    return _of_history(context, *_sides(context, found, guard, entered), guard)


def _place_of(event: TimelineEvent | None) -> Place | None:
    return event.place if event else None


def _paths(context: Context, found: Divergence) -> _Paths:
    anchor = context.call_paths.to(found.anchor.place) if found.anchor.place else ()
    common = context.call_paths.to(found.common.place) if found.common.place else anchor
    own_at, theirs_at = _place_of(found.own), _place_of(found.theirs)
    own = context.call_paths.to(own_at) if own_at else anchor
    if found.theirs is None or theirs_at is None:
        return _Paths(own=own, theirs=anchor, common=common, again=False)
    again = found.common.at == found.theirs.at
    if again and not context.call_paths.is_sure(theirs_at):
        again, common = False, anchor  # or once more in a helper, which tells nothing of the way there
    return _Paths(own=own, theirs=context.call_paths.to(theirs_at), common=common, again=again)


def _entered(context: Context, paths: _Paths) -> tuple[Condition | None, bool]:
    """The condition that led the guilty to a call where the others began the next iteration; and whether they are in it."""
    within = _parting(context, paths.own, apart(context.program, paths.own, paths.theirs))
    # What stands in a loop decides: the others went into it as well, as far as anyone knows.
    branches = [g for g in within if g.differs and not g.is_loop]
    # The others may have come as far, and turned back before that line.
    exits = [g for g in passed_by(context.program, paths.own, paths.theirs) if g.differs]
    if guard := next(iter([*branches, *exits]), None) or _deciding(within):
        return guard, True
    # They were at the next iteration's forward already, which the guilty passed by.
    after = apart(context.program, paths.theirs, paths.own)[::-1]
    return _deciding(after + passed_by(context.program, paths.theirs, paths.own)), False


def _passed(context: Context, found: Divergence, paths: _Paths) -> tuple[Condition | None, bool]:
    """The condition by which the guilty missed what the others did; and whether they are in it."""
    exits = passed_by(context.program, paths.theirs, paths.own if paths.again else paths.common)
    exits = [g for g in exits if paths.again or _comes_after(context, g, paths.common)]
    own_at = _place_of(found.own)
    within = _parting(context, paths.own, apart(context.program, paths.own, paths.theirs)) if own_at else []
    inner = _parting(context, paths.theirs, apart(context.program, paths.theirs, paths.common)[::-1]) + exits
    # Whoever did not go round at all more likely never came to the loop.
    inner = inner if paths.again else sorted(inner, key=lambda g: g.is_loop)
    near = inner if paths.again else [g for g in inner if not g.is_loop]
    guard = _deciding(near) or _taken_alone(context, found, within) or _deciding(inner) or _deciding(within)
    return guard, guard is not None and guard in within


def _parting(context: Context, path: CallPath, around: list[Condition]) -> list[Condition]:
    return [condition for condition in around if may_part(context, condition, path)]


def _sides(
    context: Context, found: Divergence, guard: Condition, entered: bool
) -> tuple[Divergence, tuple[int, ...], tuple[int, ...], bool]:
    """The difference, the guilty, the others, and whether the guilty are in the branch, by what the condition says."""
    guilty, others = found.guilty, found.others
    if guard.provenance == "rank" and len(guilty) == len(others):
        inside, outside = (guilty, others) if entered else (others, guilty)
        guilty = singled_out(context, guard, inside, outside)
        return found, guilty, tuple(r for r in context.members() if r not in guilty), guilty == inside
    if other_side_strayed(context, found, guard, entered):
        return dataclasses.replace(found, own=found.theirs, theirs=found.own), others, guilty, not entered
    return found, guilty, others, entered


def _taken_alone(context: Context, found: Divergence, within: list[Condition]) -> Condition | None:
    """The condition behind which only the guilty ever were: it says more than a loop to which they have not come yet."""
    own = found.own.place if found.own else None
    if own is None or context.timelines.was_at(found.others[0], own):
        return None
    return next((g for g in within if not g.is_loop and g.differs), None)


def _is_usual(context: Context, found: Divergence) -> bool:
    """Whether the ranks have run different lines there all along: that is how the job is meant."""
    if found.own is None or found.own.place is None:
        return False
    at = found.own.place
    return (
        context.timelines.was_at(found.guilty[0], at) > 1
        and context.timelines.was_at(found.others[0], at) == 0
    )


def _comes_after(context: Context, guard: Condition, common: CallPath) -> bool:
    """An exit that stands before what both still did was taken by neither."""
    if not common:
        return True
    at = common[-1]
    if context.program.scope_of(at.file, at.line) != context.program.scope_of(guard.file, guard.line):
        return True
    return guard.line >= at.line or (guard.leaves_at or 0) >= at.line


def _deciding(guards: list[Condition]) -> Condition | None:
    """The first that can differ between ranks; an accumulation's boundary may be counted wrongly."""
    differing = [g for g in guards if g.differs]
    counted = [g for g in guards if _is_boundary(g)]
    return next(iter(differing), None) or next(iter(counted), None)


def _is_boundary(guard: Condition) -> bool:
    return "%" in guard.test or "accum" in guard.test or "sync" in guard.test


def _of_history(
    context: Context,
    found: Divergence,
    guilty: tuple[int, ...],
    others: tuple[int, ...],
    entered: bool,
    guard: Condition,
) -> Explanation | None:
    theirs, own, number = found.theirs, found.own, found.iteration
    cls = _class_of(context, guard, (guilty[0], others[0]), number)
    if cls is None:
        return None
    here = own.place if entered and own else None
    did = f"did {own.name or 'backward'} at {locations.short(own.place)}" if own and own.place else "went on"
    missed = (
        f"{theirs.name or 'backward'} at {locations.short(theirs.place)}"
        if theirs and theirs.place
        else "the next iteration"
    )
    source = context.cell.rank(guilty[0]).source
    at = f"in iteration {number + 1} at `{shown(guard)}` ({locations.short(guard.place)})"
    because = f"diverged from the others {at}: {'it' if len(guilty) == 1 else 'they'} {did} where the others ran {missed}"
    blamed, blocked = guilty, others
    if len(guilty) == len(others) and DRAWS.search(guard.test):
        blamed, blocked = tuple(sorted((*guilty, *others))), ()
        because = f"diverged {at}, where each draws a lot of its own: rank {context.cell.names(guilty)} {did} where rank {context.cell.names(others)} ran {missed}"
    return made(
        context,
        Cause(
            cls=cls, guilty=blamed, blocked=blocked, guard=guard, where=here or guard.place,
            strength=Strength.STRONG if guard.differs else Strength.LIKELY, because=because,
            evidence=(
                Evidence(claim=f"rank {guilty[0]} {did} in iteration {number + 1}, and not {missed}", source=f"{source}/blackbox.bin"),
                context.stands(others[0]),
            ),
        ),
    )  # fmt: skip


def _class_of(context: Context, guard: Condition, ranks: tuple[int, int], number: int) -> str | None:
    steps = {context.timelines.kinds(rank, number).count(int(Kind.STEP)) for rank in ranks}
    synced = {context.timelines.synced(rank, number) for rank in ranks}
    if _is_boundary(guard) and (len(steps) > 1 or len(synced) > 1):
        return "grad_sync_mismatch"
    if guard.provenance == "rank":
        return "rank_conditional_collective"
    if guard.provenance == "input":
        return "uneven_inputs"
    if guard.provenance == "data":
        return "divergent_module_execution" if context.in_forward(guard) else "data_divergent_control_flow"
    return None


def by_grad_sync(context: Context) -> Explanation | None:
    """Iterations that reduce gradients on some ranks and only accumulate them on others."""
    found = context.timelines.first_unequal_sync(context.members())
    if found is None:
        return None
    number, begun = found
    earlier = context.timelines.first_divergence(context.members())
    if earlier is not None and _precedes(earlier, begun):
        return None
    accumulate = tuple(r for r, event in begun.items() if event.unsynced)
    reduce = tuple(r for r, event in begun.items() if not event.unsynced)
    # Of equal sides the one that does not come to the reduction is missed.
    guilty = min(accumulate, reduce, key=len) if len(accumulate) != len(reduce) else accumulate
    unsynced = locations.of_text(begun[accumulate[0]].unsynced)
    line = unsynced if guilty == accumulate else begun[reduce[0]].place
    others = reduce if guilty == accumulate else accumulate
    guard = _boundary_between(context, begun[guilty[0]].place, begun[others[0]].place)
    decided = unsynced and (switched_by(context.program, unsynced) or entered_by(context.program, unsynced))
    line = guard.place if guard else decided or line
    even = " (as many do: which was meant nobody can tell)" if len(accumulate) == len(reduce) else ""
    word = {True: "accumulates its gradients", False: "reduces its gradients"}
    return made(
        context,
        Cause(
            cls="grad_sync_mismatch", guilty=guilty, blocked=others, where=line, guard=guard, strength=Strength.STRONG,
            because=f"{word[guilty == accumulate]} in backward {number + 1}, in which the others do not{even}",
            evidence=tuple(
                Evidence(claim=f"rank {r} {word[bool(t.unsynced)]} in backward {number + 1}", source=f"{context.cell.rank(r).source}/blackbox.bin")
                for r, t in sorted(begun.items())[:8]
            ),
        ),
    )  # fmt: skip


def _precedes(difference: Divergence, begun: dict[int, TimelineEvent]) -> bool:
    """Whether the ranks had parted before those forwards."""
    own, theirs = difference.own, difference.theirs
    if own is not None:
        return own.t_ns < begun[difference.guilty[0]].t_ns
    return theirs is not None and theirs.t_ns < begun[difference.others[0]].t_ns


def _boundary_between(context: Context, one: Place | None, other: Place | None) -> Condition | None:
    """The branch that leads to one forward and not to the other, where they are two."""
    if one is None or other is None or one == other:
        return None
    return next(iter(apart(context.program, context.call_paths.to(one), context.call_paths.to(other))), None)


def by_modules(context: Context) -> Explanation | None:
    """FSDP units that ranks gather or reduce in another order, or not at all, within one iteration."""
    members = context.members()
    for number in range(min((context.timelines.count(r) for r in members), default=0)):
        series = {r: tuple(context.timelines.series(r, Kind.UNIT, number)) for r in members}
        if not any(series.values()):
            continue
        length = min(len(v) for v in series.values())
        over = number < min(context.timelines.count(r) for r in members) - 1
        if len({v[:length] for v in series.values()}) == 1 and not (over and len(set(series.values())) > 1):
            continue
        return _of_modules(context, number, series)
    return None


def _of_modules(context: Context, number: int, series: dict[int, tuple[str, ...]]) -> Explanation | None:
    known = {tuple(context.timelines.series(r, Kind.UNIT, n)) for r in series for n in range(number)}
    guilty, novel = suspects(series, known)
    undecided = not novel and len(guilty) in (0, len(series) / 2)
    skipped = _in_backward(context, number, tuple(series)) if undecided else ()
    guilty = skipped or guilty
    rest = tuple(r for r in sorted(series) if r not in guilty)
    if not guilty or not rest:
        return None
    at, own, other = _first_unequal(series[guilty[0]], series[rest[0]])
    one, another = context.now(guilty[0]), context.now(rest[0])
    around = (
        [g for g in apart(context.program, another, one) if not g.is_loop]
        if skipped
        else apart(context.program, one, another)
    )
    guard = _deciding(around) or context.choice_in_forward()
    because = f"ran other modules in iteration {number + 1}: {own}, where the others had {other}"
    if skipped:
        own, other = other, own
        because = f"passed by a module in iteration {number + 1}: it went on to backward, where the others had {own}"
    return made(
        context,
        Cause(
            cls="divergent_module_execution", guilty=guilty, blocked=rest, guard=guard,
            where=guard.place if skipped and guard else context.here(guilty[0]),
            strength=Strength.STRONG, module=own.partition(" ")[2] or other.partition(" ")[2],
            because=because,
            evidence=tuple(
                Evidence(claim=f"rank {r} in iteration {number + 1}: {', '.join(v[max(0, at - 2) : at + 2])}", source=f"{context.cell.rank(r).source}/blackbox.bin")
                for r, v in sorted(series.items())[:8]
            ),
        ),
    )  # fmt: skip


def _first_unequal(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[int, str, str]:
    """The first index at which two series differ, and what either has there."""
    pairs_of_both = enumerate(itertools.zip_longest(mine, theirs, fillvalue="nothing more"))
    return next((at, own, other) for at, (own, other) in pairs_of_both if own != other)


def _in_backward(context: Context, number: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that are through with the iteration's forward when others are not: those run units that the first passed by.

    Calls are paired by number, whatever they are: two ranks that part have then issued as many.
    """
    found = tuple(r for r in sorted(ranks) if int(Kind.BACKWARD) in context.timelines.kinds(r, number))
    return found if len(found) < len(ranks) else ()


def by_data_branch(context: Context) -> Explanation | None:
    """Some wait in a collective behind a condition on their own data, at a line where the others have never been."""
    for a, b in pairs(context):
        guard = _data_condition(context, a[0], b[0])
        if guard is None:
            continue
        guilty = a if len(a) <= len(b) else b
        others = tuple(r for r in context.members() if r not in guilty)
        cls = "divergent_module_execution" if context.in_forward(guard) else "data_divergent_control_flow"
        return made(
            context,
            Cause(
                cls=cls, guilty=guilty, blocked=others, guard=guard, strength=Strength.LIKELY,
                where=context.here(a[0]) if guilty == a else guard.place,
                because=f"diverged from the others at `{shown(guard)}` ({locations.short(guard.place)}), which depends on this rank's own data",
                evidence=(context.stands(a[0]), context.stands(b[0])),
            ),
        )  # fmt: skip
    return None


def _data_condition(context: Context, waiting: int, other: int) -> Condition | None:
    """The outermost condition on a rank's own data that the waiting rank is in and the other, never at that line, is not."""
    inside, outside = context.now(waiting), context.now(other)
    # Of a rank that is gone nothing says which of these conditions it met last.
    if (
        not inside
        or not outside
        or not context.waits_for_peers(other)
        or context.timelines.was_at(other, inside[-1])
    ):
        return None
    if parted_at(context.program, inside, outside) == 0:
        return None
    around = [
        g for g in apart(context.program, inside, outside) if g.kind != "except" and g.provenance == "data"
    ]
    # By stacks alone nobody can tell on what a loop was left.
    recorded = context.timelines.events.get(waiting) and context.timelines.events.get(other)
    around = [g for g in around if not g.is_loop or (recorded and not context.anchored_in(g))]
    return next(iter(around), None)


HYPOTHESES: tuple[Callable[[Context], Explanation | None], ...] = (
    by_end_of_loop,
    by_grad_sync,
    by_rank_branch,
    by_order,
    by_history,
    by_skipped_round,
    by_modules,
    by_data_branch,
    by_loader,
    by_stop_flag,
    by_value_told_alone,
)

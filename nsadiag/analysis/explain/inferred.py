"""The cause of a divergence by the source: from the condition at which ranks parted, or the call that differs, back to an origin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import Candidate, Kind, shown
from nsadiag.analysis.explain.candidates.lost_step import bypasses
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.explanation import candidates
from nsadiag.analysis.relations.call_paths import common_depth
from nsadiag.evidence.records import Because, Finding, Link, Origin, Place
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath, place
from nsadiag.source.patterns.statements import asks_for_a_flag
from nsadiag.source.ways.back import NO_WAY, Hop, Way, Ways
from nsadiag.source.ways.starts import another_round, computed_on, given_on, iterated_on

# What the source's provenance of a condition is called as an origin.
ORIGINS: dict[str, Origin] = {"rank": "rank", "data": "data", "input": "data", "uniform": "unknown"}
# Ranks made the same call there, with other arguments or in another order.
CALLED = "what was called here is not the same function on all ranks"
GIVEN, ITERATED = "ranks gave the call different arguments", "ranks iterate here in another order or number"
UNLIKE = (
    "collective_args_mismatch",
    "collective_order_mismatch",
    "process_group_mismatch",
    "model_structure_mismatch",
)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The line at which the way back begins. `chooses`: ranks could have agreed there, so that it is the cause itself."""

    at: Place
    because: str
    ranks: tuple[int, ...]
    origin: Origin = "unknown"  # as far as the line itself tells
    way: Way = NO_WAY
    chooses: bool = False
    passes_on: bool = False  # a choice that another line has made


def inferred(case: Case, cause: Finding) -> Because | None:
    """The line that the source says made ranks differ, and the way to its origin; None where it names none."""
    start = _at_condition(case, cause) or next(_at_lines(case, cause), None)
    if start is None:
        return None
    first = Link(at=start.at, because=start.because, how="inferred", ranks=start.ranks)
    links = (first, *(_link(step, start.ranks) for step in start.way.steps))
    at = links[_index(start)].at
    return Because(
        file=at.file, line=at.line, function=at.function, code=at.code, how="inferred",
        origin=start.way.origin if start.way.origin != "unknown" else start.origin, chain=links,
    )  # fmt: skip


def _index(start: _Start) -> int:
    """The link to change: a choice, else what was made of that in which ranks may differ."""
    steps = start.way.steps
    if start.chooses:
        return _chosen(start.way) if start.passes_on else 0
    if steps and steps[-1].is_unordered:  # a set may be had, and is not to be iterated over
        return next((n for n, step in enumerate(steps, 1) if step.is_loop), 0)
    # How much there is was chosen where something is left out.
    number = next((n for n, step in enumerate(steps, 1) if step.chooses or step.leaves_out), None)
    number = number or next((n for n in range(len(steps), 0, -1) if steps[n - 1].computes), None)
    return number or (len(steps) - steps[-1].is_only_read if steps else 0)


def _chosen(way: Way) -> int:
    """The link at which a function that ranks asked chose its answer: `usable(batch)`, a property, `turn = balance.turn()`.

    0 of a flag that was set before, and of who one is: that ranks differ in by right.
    """
    answers = list(itertools.takewhile(lambda step: not step.is_attribute, way.steps))
    number = next((n for n, step in enumerate(answers) if step.chooses and not step.name), None)
    if number is None:
        is_asked = (
            way.origin not in ("rank", "data", "unknown")
            and answers == [*way.steps]
            and not way.steps[-1:][0].name
        )
        return len(way.steps) if answers and is_asked else 0
    is_role = way.origin == "rank" and all(step.is_only_read for step in way.steps[number + 1 :])
    return 0 if is_role else number + 1


def _link(step: Hop, ranks: tuple[int, ...]) -> Link:
    text = f"`{step.name}` gets its value here" if step.name else "the value comes from here"
    if step.is_condition:
        text = (
            f"`if {step.text}` may hold on some ranks only"
            if step.is_test
            else f"`{step.text}` may choose differently"
        )
    return Link(at=step.scope.place(step.node.lineno), because=text, how="inferred", ranks=ranks)


def _at_condition(case: Case, cause: Finding) -> _Start | None:
    """The condition of the best explanation, if the verdict is of its class."""
    known = [c for c in case.once(candidates) if c.cls == cause.cls]
    for each in known:
        ranks, origin = case.cell.everyone(each.guilty), ORIGINS[each.provenance]
        if condition := each.condition or _loop_at(case, each):
            start = _of_condition(case, condition, ranks, origin)
            retry = another_round(case.once(Context).program, condition) if start.way is NO_WAY else None
            return _of_condition(case, retry, ranks, "exception") if retry else start
        if each.kind == Kind.GRADIENT_SYNC and each.where is not None:
            return _of_switch(case, each.where, ranks, origin)
    return None


def _of_switch(case: Case, at: Place, ranks: tuple[int, ...], origin: Origin) -> _Start:
    """The line by which a rank's gradients are accumulated: a call in it, or the condition around it, chose."""
    program = case.once(Context).program
    around = [each for each in program.around(at.file, at.line) if not each.is_loop and each.line != at.line]
    if around and around[-1].differs:
        return _of_condition(case, around[-1], ranks, origin)
    ways, scope = Ways(program), program.scope_of(at.file, at.line)
    found = [ways.of(call, scope) for call in program.call_nodes_on(at.file, at.line)]
    way = next((each for each in found if any(step.chooses for step in each.steps)), NO_WAY)
    text = "gradients were accumulated on some ranks and reduced on others"
    return _Start(at=at, because=text, ranks=ranks, origin=origin, way=way, chooses=True, passes_on=True)


def _loop_at(case: Case, candidate: Candidate) -> Condition | None:
    """The loop whose inputs ended, of a loader of which its questions alone are on record."""
    at, program = candidate.where, case.once(Context).program
    if candidate.kind != Kind.LOOP_END or at is None:
        return None
    inside = program.around(at.file, at.line + 1)
    return next((each for each in inside if each.is_loop and each.line == at.line), None)


def _of_condition(case: Case, condition: Condition, ranks: tuple[int, ...], origin: Origin) -> _Start:
    program = case.once(Context).program
    found = program.expression_of(condition)
    way = Ways(program).of(found, program.scope_of(condition.file, condition.line)) if found else NO_WAY
    return _Start(
        at=condition.place, because=f"`{shown(condition)}` decided differently", ranks=ranks, origin=origin, way=way,
        chooses=condition.kind != "for" or bool(condition.leaves), passes_on=found is not None and asks_for_a_flag(found),
    )  # fmt: skip


def _at_lines(case: Case, cause: Finding) -> Iterator[_Start]:
    """For want of an explanation: the lines that lead to one rank's line and not to another's, or to a call that ranks made unlike."""
    context = case.once(Context)
    ranks = [rank for rank in (*cause.guilty_ranks, *cause.blocked_ranks) if context.path_of(rank)]
    paths = [context.path_of(rank) for rank in dict.fromkeys(ranks)]
    if cause.cls == "process_group_mismatch":
        for at in _named(cause):
            yield from _of_call(case, at, cause.cls, cause.guilty_ranks)
    other = next((path for path in paths[1:] if not path[-1].is_at(paths[0][-1])), None)
    if other is not None:
        yield from _between(case, paths[0], other, cause.guilty_ranks)
    for at in (*_named(cause), *(reversed(paths[0]) if paths else ())) if cause.cls in UNLIKE else ():
        yield from _of_call(case, at, cause.cls, cause.guilty_ranks)


def _between(case: Case, one: CallPath, other: CallPath, ranks: tuple[int, ...]) -> Iterator[_Start]:
    """The lines between two ranks: a condition, a call of what was computed, or a function that is only there under a condition."""
    context = case.once(Context)
    program, sides = context.program, ((one, other), (other, one))
    guards = [g for a, b in sides for g in (*context.differing(a, b), *context.early_exits(a, b))]
    branches = [g for g in guards if not g.is_loop and g.kind != "except"]
    for each in (g for g in branches if g.differs):
        yield _of_condition(case, each, ranks, ORIGINS[each.provenance])
    for a, b in sides:
        for at in a[common_depth(a, b) :]:
            if (outer := program.defined_under(at)) and outer.differs:
                yield _of_condition(case, outer, ranks, ORIGINS[outer.provenance])
    # A loop of as many rounds on all ranks, of which one went by without what the others did in it.
    for a, b in sides:
        for loop in (g for g in context.differing(a, b) if g.is_loop and not g.leaves):
            for each in bypasses(program, loop, a) if len(bypasses(program, loop, a)) == 1 else ():
                yield _of_condition(case, each, ranks, ORIGINS[each.provenance])
    yield from _computed(context, one, other, ranks)
    # The ranks parted, so that the only condition between them did not hold on all, whatever its names say.
    if len({(g.file, g.line) for g in branches}) == 1:
        yield _of_condition(case, branches[0], ranks, "unknown")


def _computed(context: Context, one: CallPath, other: CallPath, ranks: tuple[int, ...]) -> Iterator[_Start]:
    """The line from which ranks called different functions, where it looks up what it calls."""
    at, program = _last_common(one, other), context.program
    if at is None:
        return
    for each in computed_on(program, at):
        way = Ways(program).of(each, program.scope_of(at.file, at.line))
        if way is not NO_WAY:
            yield _Start(at=at, because=CALLED, ranks=ranks, way=way, chooses=True, passes_on=True)


def _last_common(one: CallPath, other: CallPath) -> Place | None:
    """The line from which the two ranks called different functions."""
    same = [
        x for x, _ in itertools.takewhile(lambda both: both[0].is_at(both[1]), zip(one, other, strict=False))
    ]
    return same[-1] if same and len(same) < min(len(one), len(other)) else None


def _named(cause: Finding) -> list[Place]:
    """The line that the verdict names."""
    at = cause.where
    return [place(at.file, at.line, at.function)] if at and at.file and at.line else []


def _of_call(case: Case, at: Place, cls: str, ranks: tuple[int, ...]) -> Iterator[_Start]:
    """The condition or loop that brings ranks to the line, the nearest first, then what its calls are given."""
    program = case.once(Context).program
    ways, scope = Ways(program), program.scope_of(at.file, at.line)
    if cls != "collective_args_mismatch":
        for condition in reversed(program.around(at.file, at.line)):
            start = _of_condition(case, condition, ranks, ORIGINS[condition.provenance])
            if start.way is not NO_WAY and (condition.kind == "for" or condition.differs):
                yield start
    for text, expressions in ((GIVEN, given_on(program, at)), (ITERATED, iterated_on(program, at))):
        for each in expressions:
            if (way := ways.of(each, scope)) is not NO_WAY:
                yield _Start(at=at, because=text, ranks=ranks, way=way)

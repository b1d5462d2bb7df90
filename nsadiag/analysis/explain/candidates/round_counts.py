"""The loop that a rank left too early: whose rounds decide how often a line is run that stands in a helper, or what passes by it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import Chain
from nsadiag.evidence.records import Place
from nsadiag.source.control import Guard, Program
from nsadiag.source.evaluation import OnRank
from nsadiag.source.model import last_name


def loop_left(at: Place, who: OnRank, stands: Chain, others: Iterable[Chain]) -> Place | None:
    """The one loop around a call of the line's function in which the rank does not stand any more.

    `stands`: where the rank is, `others`: where its peers are. Of a loop over a generator, what it gives out there.
    Where all ranks have as many rounds, the condition that passes by the call in some of them.
    None where several may be it, or both the rounds and a condition may change.
    """
    program = who.program
    found: dict[tuple[str, int], Guard] = {}
    conditions: dict[tuple[str, int], Guard] = {}
    for file, line in _calls_of_its_function(program, at):
        around = program.around(file, line)
        loops = [g for g in around if g.is_loop]
        if not loops or _is_inside(stands, file, loops[-1].line, loops[-1].ends):
            continue
        if any(who.never_in(g) for g in around if not g.is_loop):
            continue
        loop = loops[-1]
        between = around[around.index(loop) + 1 :]
        passed = [g for g in program.jumps_before(file, line) if loop.line < g.line <= loop.ends]
        found[file, loop.line] = loop
        conditions |= {(g.file, g.line): g for g in (*between, *passed) if who.decides(g)}
    if len(found) != 1:
        return None
    loop = next(iter(found.values()))
    if conditions:
        return _passing_by(program, loop, list(conditions.values()))
    return _in_generator(program, loop, others) or _line_of(loop)


def _passing_by(program: Program, loop: Guard, conditions: list[Guard]) -> Place | None:
    """The one condition in the loop that may change, if nothing else ends its rounds earlier on one rank than on others."""
    ends = {(g.file, g.line) for g in program.exits_of_loop(loop)} - {(c.file, c.line) for c in conditions}
    return _line_of(conditions[0]) if len(conditions) == 1 and loop.origin == "uniform" and not ends else None


def _line_of(guard: Guard) -> Place:
    return locations.place(guard.file, guard.line, guard.function or None)


def _calls_of_its_function(program: Program, at: Place) -> list[tuple[str, int]]:
    """Where the user's code calls the function that the line is in; not what a module has under the same name."""
    name = program.scope_of(at.file, at.line)[1].rpartition(".")[2]
    return [(scope[0], call.lineno) for scope, call in program.origins.calls_of(name)] if name else []


def _is_inside(chain: Chain, file: str, first: int, last: int) -> bool:
    return any(p.file == file and first <= p.line <= last for p in chain)


def _in_generator(program: Program, loop: Guard, others: Iterable[Chain]) -> Place | None:
    """Of a loop over a generator of the user's: the loop in it that gives out, if it is known which one did."""
    made = [
        (scope, function)
        for call in program.call_nodes_on(loop.file, loop.line)
        for scope, function in program.origins.functions.get(last_name(call.func), ())
        if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(function))
    ]
    if loop.kind != "for" or len(made) != 1:
        return None
    (file, _), function = made[0]
    elsewhere, given = list(others), set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Yield | ast.YieldFrom):
            continue
        around = program.around(file, node.lineno)
        own = next((g for g in reversed(around) if g.is_loop), None)
        first, last = (own.line, own.ends) if own else (node.lineno, node.end_lineno or node.lineno)
        on_rank = any(g.origin == "rank" and not g.is_loop for g in around)
        if on_rank and any(_is_inside(chain, file, first, last) for chain in elsewhere):
            continue  # a peer gives out there, whose way in is not this rank's
        given.add(first if own else node.lineno)
    return locations.place(file, given.pop(), function.name) if len(given) == 1 else None

"""The loop that a rank left too early: whose rounds decide how often a line is run that stands in a helper."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nsadiag.analysis import places
from nsadiag.analysis.flow.chains import Chain
from nsadiag.analysis.flow.guards import Guard, Program
from nsadiag.analysis.flow.origins import last_name
from nsadiag.evidence.records import Place


def loop_left(program: Program, at: Place, stands: Chain, others: Iterable[Chain]) -> Place | None:
    """The one loop around a call of the line's function in which the rank does not stand any more.

    `stands`: where the rank is, `others`: where its peers are. Of a loop over a generator, what it gives out there.
    None where several may be it, or a condition that may change decides as well.
    """
    found: dict[tuple[str, int], Guard | None] = {}
    for file, line in _calls_of_its_function(program, at):
        around = program.around(file, line)
        loops = [g for g in around if g.is_loop]
        if not loops or _is_inside(stands, file, loops[-1].line, loops[-1].ends):
            continue
        loop = loops[-1]
        between = around[around.index(loop) + 1 :]
        passed = [g for g in program.jumps_before(file, line) if loop.line < g.line <= loop.ends]
        # What depends on the rank alone was the same in all rounds.
        decides = any(g.origin != "rank" for g in (*between, *passed))
        found[file, loop.line] = None if decides else loop
    loop_ = next(iter(found.values())) if len(found) == 1 else None
    return (_in_generator(program, loop_, others) or _line_of(loop_)) if loop_ else None


def _line_of(loop: Guard) -> Place:
    return places.place(loop.file, loop.line, loop.function or None)


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
    return places.place(file, given.pop(), function.name) if len(given) == 1 else None

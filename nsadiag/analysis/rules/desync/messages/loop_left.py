"""The loop that a rank left too early: whose rounds decide how often a line is run that stands in a helper, or what passes by it."""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.evaluation import OnRank
from nsadiag.source.model import CallPath
from nsadiag.source.trip_counts import generator_of


def loop_left(at: Place, who: OnRank, stands: CallPath, others: Iterable[CallPath]) -> Place | None:
    """The one loop around a call of the line's function in which the rank does not stand any more.

    `stands`: where the rank is, `others`: where its peers are. Of a loop over a generator, what it gives out there.
    Where all ranks have as many rounds, the condition that passes by the call in some of them.
    None where several may be it, or both the rounds and a condition may change.
    """
    program = who.program
    found: dict[tuple[str, int], Condition] = {}
    conditions: dict[tuple[str, int], Condition] = {}
    for file, line in _calls_of_its_function(program, at):
        around = program.around(file, line)
        loops = [g for g in around if g.is_loop]
        if not loops or any(map(loops[-1].holds, stands)):
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
    return _in_generator(program, loop, others) or loop.place


def _passing_by(program: Program, loop: Condition, conditions: list[Condition]) -> Place | None:
    """The one condition in the loop that may change, if nothing else ends its rounds earlier on one rank than on others."""
    ends = {(g.file, g.line) for g in program.exits_of_loop(loop)} - {(c.file, c.line) for c in conditions}
    return conditions[0].place if len(conditions) == 1 and loop.provenance == "uniform" and not ends else None


def _calls_of_its_function(program: Program, at: Place) -> list[tuple[str, int]]:
    """The user's lines that call the function that the line is in; not a module's function of the same name."""
    name = program.scope_of(at.file, at.line).function
    return program.callers(name) if name else []


def _in_generator(program: Program, loop: Condition, others: Iterable[CallPath]) -> Place | None:
    """The loop in a generator of the user's that is exhausted, where another loop iterates over it; None if it is not known which."""
    generator = generator_of(program, loop)
    if generator is None:
        return None
    scope, yields = generator
    elsewhere, given = list(others), set()
    for each in yields:
        own = each.loop
        first, last = (own.line, own.ends) if own else (each.line, each.ends)
        on_rank = any(c.provenance == "rank" and not c.is_loop for c in each.around)
        if on_rank and any(
            p.file == scope.file and first <= p.line <= last for path in elsewhere for p in path
        ):
            continue  # a peer gives out there, whose way in is not this rank's
        given.add(first if own else each.line)
    return scope.place(given.pop()) if len(given) == 1 else None

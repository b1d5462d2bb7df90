"""Nested loops that a rank has left together: whether the outer one was over, told by how often the training went round in it."""

from __future__ import annotations

import ast

from nsadiag.analysis.explain.candidates.loop_entry import in_body
from nsadiag.analysis.explain.context import Situation
from nsadiag.evidence.records import Place
from nsadiag.source.control import Guard, Program
from nsadiag.source.model import Scope

DEEPEST = 4  # names that stand for one another


def left_between_rounds(s: Situation, outer: Guard, *, stayed: int, left: int) -> bool:
    """Whether `left` went out of `outer`, a loop of a known number of rounds, after whole rounds and before the last.

    Then no loop inside it gave out early: each had gone round as often as ever. What a whole round is,
    earlier visits of the loop tell: each was of whole rounds, the longest of all of them.
    """
    rounds = _rounds(s.program, outer)
    mine, theirs = _visits(s, outer, left), _visits(s, outer, stayed)
    if not s.histories.are_whole:
        # Of the first that is left in the ring the beginning may have been written over.
        mine, theirs = mine[1:], theirs[1:]
    if not rounds or rounds < 2 or len(mine) < 3 or len(theirs) < 2:
        return False
    # Behind the last thing outside is what was done since: nothing, of who has left.
    *before, last, since = mine
    *others, now = theirs
    if since or now <= last or not before or not all((last, *before, *others)):
        return False
    whole, rest = divmod(max(*before, *others), rounds)
    if rest or not whole or any(visit % whole for visit in (*before, *others)):
        return False
    return last % whole == 0 and last <= whole * (rounds - 1)


def _visits(s: Situation, loop: Guard, rank: int) -> list[int]:
    """How often the rank began the training step between things that it did outside the loop; the last is not over."""
    inside: dict[str, bool | None] = {}
    found, outside = [0], True
    for token in s.histories.tokens.get(rank, ()):
        if token.place is None:
            continue
        if token.at not in inside:
            # In a helper that is called from within the loop and from elsewhere, it says nothing.
            way = s.chains.to(token.place)
            knows = len(way) > 1 or s.program.scope_of(token.place.file, token.place.line)[1] == ""
            sure = in_body(loop, token.place) or (knows and s.chains.is_sure(token.place))
            inside[token.at] = _is_inside(s, loop, token.place) if sure else None
        if inside[token.at] is None:
            continue
        if not inside[token.at]:
            if not outside:
                found.append(0)
            outside = True
            continue
        outside = False
        found[-1] += token.at == s.histories.anchor
    return found


def _is_inside(s: Situation, loop: Guard, at: Place) -> bool:
    return any(p.file == loop.file and loop.line <= p.line <= loop.ends for p in s.chains.to(at))


def _rounds(program: Program, loop: Guard) -> int | None:
    """The number in `for ... in range(number)`, if it is the same wherever it may come from."""
    node = next((n for n in program.path_to(loop.file, loop.line)[-1:] if isinstance(n, ast.For)), None)
    call = node.iter if node else None
    plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
    if not plain or len(call.args) != 1:  # type: ignore[union-attr]
        return None
    found = _numbers(program, call.args[0], program.scope_of(loop.file, loop.line))  # type: ignore[union-attr]
    return found.pop() if len(found) == 1 else None


def _numbers(program: Program, value: ast.expr, scope: Scope, depth: int = 0) -> set[int | None]:
    """All that the value may be; None among them for what only the run knows."""
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return {value.value}
    found: set[int | None] = set()
    if depth < DEEPEST and isinstance(value, ast.Name | ast.Attribute):
        default = _default(program, value.id, scope) if isinstance(value, ast.Name) else None
        if default is not None:
            found |= _numbers(program, default, scope, depth + 1)
        for key in program.origins.keys_of(value, scope):
            for binding in program.origins.bindings.get(key, ()):
                found |= _numbers(program, binding.value, binding.scope, depth + 1)
    return found or {None}


def _default(program: Program, name: str, scope: Scope) -> ast.expr | None:
    """What the parameter of that name is if nobody says."""
    for where, function in program.origins.functions.get(scope[1].rpartition(".")[2], ()):
        if where != scope:
            continue
        args = [*function.args.posonlyargs, *function.args.args]
        named = [*zip(args[::-1], function.args.defaults[::-1], strict=False)]
        named += [
            (a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d
        ]
        return next((default for arg, default in named if arg.arg == name), None)
    return None

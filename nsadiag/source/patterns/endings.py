"""Whatever ends a `while` loop: its condition, and those of the lines in it that leave."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.evidence.rehearsal.reads import Read, names_in
from nsadiag.source.model import Loop, SourceFile, own_nodes

LEAVES = ast.Break | ast.Return | ast.Raise


@dataclass(frozen=True, kw_only=True)
class Atom:
    """A part of a condition without `and`, `or` and `not`. `sides`: of a comparison of two numbers, each a name or a number."""

    reads: tuple[Read, ...]
    sides: tuple[Read | float, Read | float] | None = None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A condition that ends the loop."""

    line: int
    text: str
    atoms: tuple[Atom, ...]


@dataclass(frozen=True, kw_only=True)
class WhileLoop:
    """A `while` loop. `head`: the line that begins each iteration, since a constant condition has no line event."""

    first: int
    last: int
    head: int
    test: str
    endings: tuple[Ending, ...]


def while_loops(file: SourceFile | None, line: int) -> list[WhileLoop]:
    """Those around the line within its function, the outermost first."""
    return [_made(node) for node in (file.around(line, ast.While)[::-1] if file else ())]


def _made(node: ast.While) -> WhileLoop:
    forever = isinstance(node.test, ast.Constant)
    own = [] if forever else [_ending(node.test)]
    inner = (each for each in own_nodes(node) if isinstance(each, ast.If) and _leaves(each, node))
    return WhileLoop(
        first=node.lineno,
        last=node.end_lineno or node.lineno,
        head=node.body[0].lineno if forever else node.lineno,
        test=ast.unparse(node.test),
        endings=(*own, *(_ending(each.test) for each in inner)),
    )


def _leaves(branch: ast.If, loop: Loop) -> bool:
    """Whether a way through the branch leads out of the loop: a `break` of a loop inside leads out of that alone."""
    inner = [n for n in own_nodes(loop) if isinstance(n, Loop) and n is not loop]
    breaks = {n for each in inner for n in ast.walk(each) if isinstance(n, ast.Break)}
    return any(isinstance(n, LEAVES) and n not in breaks for n in own_nodes(branch))


def _ending(test: ast.expr) -> Ending:
    return Ending(line=test.lineno, text=ast.unparse(test), atoms=tuple(_atoms(test)))


def _atoms(test: ast.expr) -> Iterator[Atom]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _atoms(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _atoms(test.operand)
    else:
        yield Atom(reads=tuple(dict.fromkeys(names_in(test))), sides=_sides(test))


def _sides(test: ast.expr) -> tuple[Read | float, Read | float] | None:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    a, b = _side(test.left), _side(test.comparators[0])
    return (a, b) if a is not None and b is not None else None


def _side(node: ast.expr) -> Read | float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    named = tuple(names_in(node)) if isinstance(node, ast.Name | ast.Attribute) else ()
    return named[0] if len(named) == 1 else None

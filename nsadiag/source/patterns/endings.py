"""Whatever ends a loop that has no end of its own: its condition, those of the lines in it that leave, and what else may."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from nsadiag.evidence.rehearsal.reads import Read, chain_of, names_in
from nsadiag.source.model import Function, Loop, SourceFile, calls_in, last_name, name_of, own_nodes

LEAVES = ast.Break | ast.Return | ast.Raise
# Calls by which a value says no more than is on record of it. Whatever else is called may ask the world.
PURE = {
    "abs", "all", "any", "bool", "ceil", "float", "floor", "int", "isfinite", "isinf", "isinstance", "isnan", "item", "len",
    "log", "max", "min", "pow", "round", "sqrt", "str", "sum", "endswith", "startswith", "lower", "strip",
}  # fmt: skip
FOREVER = {"count", "cycle", "repeat"}  # of itertools
NEXT = {"next", "anext"}  # the end of an iterator ends the loop as well


@dataclass(frozen=True, kw_only=True)
class Atom:
    """A part of a condition without `and`, `or` and `not`.

    `sides`: of a comparison of two numbers, each a name or a number. `ordered`: names that are a side of a comparison by size,
    or a term of it, each with the value for which it never holds: nan, or an extreme of what is a whole side. `sizes`: names that are asked for their size, or whether they are empty, alone. `asks`: whether it calls what may
    answer otherwise without any name's having changed.
    """

    reads: tuple[Read, ...]
    sides: tuple[Read | float, Read | float] | None = None
    ordered: tuple[tuple[Read, str], ...] = ()
    sizes: frozenset[Read] = frozenset()
    asks: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A condition that ends the loop."""

    line: int
    text: str
    atoms: tuple[Atom, ...]


@dataclass(frozen=True, kw_only=True)
class EndlessLoop:
    """A `while` loop, or a `for` over what never runs out.

    `head`: the line that begins each iteration, since a constant condition has no line event. `heads`: those of the loops in
    it. `tries`: whether a way out stands in a `try` or its handler, so that an exception decides. `bare`: whether any other
    stands under no condition.
    """

    first: int
    last: int
    head: int
    text: str
    endings: tuple[Ending, ...]
    heads: frozenset[int] = field(default_factory=frozenset)
    calls: bool = False
    sleeps: bool = False
    nexts: bool = False
    tries: bool = False
    bare: bool = False


def endless_around(file: SourceFile | None, line: int) -> list[EndlessLoop]:
    """Those around the line within its function, the outermost first."""
    if file is None:
        return []
    imported = frozenset(_imported(file))
    return [_made(node, imported) for node in file.loops_around(line)[::-1] if _has_no_end(node, file)]


def endless_loop(file: SourceFile, node: Loop) -> EndlessLoop:
    """One loop, of which somebody knows that it has no end of its own."""
    return _made(node, frozenset(_imported(file)))


def _has_no_end(node: Loop, file: SourceFile) -> bool:
    if isinstance(node, ast.While):
        return True
    given = node.iter
    if not isinstance(given, ast.Call):
        return False
    if name_of(given) == "enumerate" and given.args and isinstance(given.args[0], ast.Call):
        given = given.args[0]
    if name_of(given) in FOREVER or (name_of(given) == "iter" and len(given.args) == 2):
        return True
    made = [each for each in file.functions if each.name == name_of(given)]
    return len(made) == 1 and _yields_forever(made[0])


def _yields_forever(function: Function) -> bool:
    """Whether it is a generator that no statement of its own ends."""
    own = list(own_nodes(function))
    loops = (
        n
        for n in function.body
        if isinstance(n, ast.While) and isinstance(n.test, ast.Constant) and n.test.value
    )
    inside = next((list(own_nodes(loop)) for loop in loops), [])
    yields = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inside)
    return yields and not any(isinstance(n, LEAVES) for n in own)


def _made(node: Loop, imported: frozenset[str]) -> EndlessLoop:
    forever = isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
    own = [_ending(node.test, imported)] if isinstance(node, ast.While) and not forever else []
    nodes = list(own_nodes(node))
    inner = [n for n in nodes if isinstance(n, Loop)]
    breaks = {n for each in inner for n in ast.walk(each) if isinstance(n, ast.Break)}
    leaving = [n for n in nodes if isinstance(n, LEAVES) and n not in breaks]
    ifs = [n for n in nodes if isinstance(n, ast.If) and any(leaf in leaving for leaf in own_nodes(n))]
    under = {leaf for each in ifs for leaf in own_nodes(each)}
    tried = {leaf for each in nodes if isinstance(each, ast.Try) for leaf in own_nodes(each)}
    bare = [leaf for leaf in leaving if leaf not in under]
    called = {name_of(call) for each in nodes for call in ([each] if isinstance(each, ast.Call) else [])}
    return EndlessLoop(
        first=node.lineno,
        last=node.end_lineno or node.lineno,
        head=node.body[0].lineno if forever else node.lineno,
        text=_text(node),
        endings=(*own, *(_ending(each.test, imported) for each in ifs)),
        heads=frozenset(each.lineno for each in inner if isinstance(each, ast.For)),
        calls=bool(calls_in(node)),
        sleeps="sleep" in called,
        nexts=bool(called & NEXT),
        tries=any(leaf in tried for leaf in leaving),
        bare=any(leaf not in tried for leaf in bare),
    )


def _text(node: Loop) -> str:
    if isinstance(node, ast.While):
        return f"while {ast.unparse(node.test)}"
    return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"


def _imported(file: SourceFile) -> Iterator[str]:
    for alias in file.all(ast.alias):
        yield (alias.asname or alias.name).partition(".")[0]


def _ending(test: ast.expr, imported: frozenset[str]) -> Ending:
    return Ending(line=test.lineno, text=ast.unparse(test), atoms=tuple(_atoms(test, imported)))


def _atoms(test: ast.expr, imported: frozenset[str]) -> Iterator[Atom]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _atoms(value, imported)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _atoms(test.operand, imported)
    else:
        reads = dict.fromkeys(read for read in names_in(test) if read[0] not in imported)
        yield Atom(
            reads=tuple(reads), sides=_sides(test), ordered=_ordered(test), sizes=_sizes(test), asks=_asks(test)
        )  # fmt: skip


def _asks(test: ast.expr) -> bool:
    unclear = (
        ast.Subscript | ast.Await | ast.Lambda | ast.NamedExpr | ast.Starred | ast.ListComp | ast.GeneratorExp
    )
    return any(
        isinstance(each, unclear) or (isinstance(each, ast.Call) and last_name(each.func) not in PURE)
        for each in ast.walk(test)
    )


def _sizes(test: ast.expr) -> frozenset[Read]:
    """Names of which no more than the size counts, as in `len(queue) < 3` and `while queue`."""
    whole = [test] if isinstance(test, ast.Name | ast.Attribute) else []
    measured = [c.args[0] for c in calls_in(test) if name_of(c) == "len" and len(c.args) == 1]
    found = (chain_of(each) for each in (*whole, *measured) if isinstance(each, ast.Name | ast.Attribute))
    return frozenset(filter(None, found))


def _ordered(test: ast.expr) -> tuple[tuple[Read, str], ...]:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return ()
    op = test.ops[0]
    if not isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return ()
    # inf < x holds for no x, nor does x < -inf.
    extremes = {ast.Lt: ("inf", "-inf"), ast.Gt: ("-inf", "inf")}.get(type(op), ("nan", "nan"))
    found = []
    for side, value in zip((test.left, test.comparators[0]), extremes, strict=True):
        whole = isinstance(side, ast.Name | ast.Attribute)
        found += [(name, value if whole else "nan") for name in map(chain_of, _summands(side)) if name]
    return tuple(found)


def _summands(side: ast.expr) -> Iterator[ast.expr]:
    """Names that make all of it nan where they are."""
    if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        yield from _summands(side.left)
        yield from _summands(side.right)
    elif isinstance(side, ast.Name | ast.Attribute):
        yield side


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

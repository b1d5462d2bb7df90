"""The exits of a loop in its source, its uses of a clock, and its calls."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nsadiag.evidence.user_code import is_user
from nsadiag.source.model import Function, Loop, SourceFile, calls_in, names_in, own_nodes, parsed, spans

# Whatever looks at the time ends by itself. A sleep asks no clock.
CLOCK = re.compile(
    r"\b\w*(time|clock|monotonic|perf_counter|\bnow\b|deadline|until|elapsed|timer|expire|tick)\w*",
    re.IGNORECASE,
)
NAP = re.compile(r"\btime\.sleep\([^)]*\)")
Frame = tuple[str, str, int]  # file, function, line


@dataclass(frozen=True, kw_only=True)
class LoopSource:
    """One `while` or `for` of a user's file."""

    file: str
    line: int
    node: Loop
    calls: bool  # whether anything is called in it
    # Local variables that alone decide, by comparisons of numbers, when it ends; None where something else has a say.
    decided_by: frozenset[str] | None
    asked: frozenset[str]  # all names in the conditions that may end it
    given: frozenset[str]  # what its function was called with, as far as the loop leaves it alone

    @property
    def text(self) -> str:
        """The loop, and the functions of its file that it calls, as written."""
        source = source_of(self.file)
        return source.text_with_callees(self.node) if source else ast.unparse(self.node)

    def asks_a_clock(self, within: Iterable[Frame]) -> bool:
        """Whether the loop, or a function of the user's that runs in it, has to do with time."""
        return any(CLOCK.search(NAP.sub("", ast.unparse(node))) for node in self._run(within))

    def stores(self, within: Iterable[Frame]) -> bool:
        """Whether any of these changes an object or a container from within: that state cannot be looked at."""
        places = ast.Attribute | ast.Subscript
        return any(
            isinstance(n, places) and isinstance(n.ctx, ast.Store)
            for node in self._run(within)
            for n in ast.walk(node)
        )

    def _run(self, within: Iterable[Frame]) -> list[ast.AST]:
        """The loop and the user's functions that were seen to run in it."""
        users = (frame for frame in within if is_user(frame[0]))
        found = [_function(file, function, {line}) for file, function, line in users]
        return [self.node, *(node for node in found if node is not None)]


def loop_around(file: str, function: str, lines: set[int]) -> LoopSource | None:
    """The innermost loop of that function that holds all these lines; None if there is none, or no source."""
    body = _function(file, function, lines)
    if body is None:
        return None
    around = [node for node in own_nodes(body) if isinstance(node, Loop) and spans(node, *lines)]
    if not around:
        return None
    innermost = max(around, key=lambda node: node.lineno)
    return LoopSource(
        file=file,
        line=innermost.lineno,
        node=innermost,
        calls=bool(calls_in(innermost)),
        decided_by=_decided_by(innermost),
        asked=_names(_tests(innermost)),
        given=_parameters(body) - _stored(innermost),
    )


def _function(file: str, function: str, lines: set[int]) -> Function | None:
    # py-spy may put the class before the name.
    name = function.rpartition(".")[2]
    source = source_of(file)
    functions = source.functions if source else ()
    found = [node for node in functions if node.name == name and spans(node, *lines)]
    return max(found, key=lambda node: node.lineno, default=None)


def source_of(file: str) -> SourceFile | None:
    """The file as it is on this disk; None where it is not Python."""
    try:
        return _parsed(file, Path(file).read_text(errors="replace"))
    except (OSError, ValueError):
        return None


# A rank that goes round in one file is looked at time and again.
@functools.lru_cache(maxsize=4)
def _parsed(file: str, text: str) -> SourceFile | None:
    return parsed(file, text)


def _decided_by(loop: Loop) -> frozenset[str] | None:
    if not isinstance(loop, ast.While):
        return None
    # What is handed out, or raised and caught, may end it as well; so may a way out that no condition guards.
    others = ast.Yield | ast.YieldFrom | ast.Await | ast.Try | ast.With
    bare = any(isinstance(node, ast.Break | ast.Return | ast.Raise) for node in loop.body)
    if bare or any(isinstance(node, others) for node in own_nodes(loop)):
        return None
    tests = _tests(loop)
    return _names(tests) if tests and all(map(_compares, tests)) else None


def _tests(loop: Loop) -> list[ast.expr]:
    """The conditions that may end it."""
    own = [loop.test] if isinstance(loop, ast.While) else []
    leaves = [node.test for node in own_nodes(loop) if isinstance(node, ast.If) and _may_leave(node)]
    return [test for test in own + leaves if not isinstance(test, ast.Constant)]


def _parameters(function: Function) -> frozenset[str]:
    given = function.args
    return frozenset(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def _stored(loop: ast.stmt) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _names(tests: list[ast.expr]) -> frozenset[str]:
    return frozenset(names_in(*tests) - {"len"})


def _may_leave(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Break | ast.Return | ast.Raise) for n in own_nodes(node))


def _compares(test: ast.expr) -> bool:
    """Numbers, by name or as the length of something: a bare flag may stay as it is while work goes on."""
    if isinstance(test, ast.BoolOp):
        return all(_compares(value) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _compares(test.operand)
    if not isinstance(test, ast.Compare):
        return False
    ordered = all(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in test.ops)
    return ordered and all(_is_number(side) for side in (test.left, *test.comparators))


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id == "len" and not node.keywords
        return named and all(isinstance(argument, ast.Name) for argument in node.args)
    return isinstance(node, ast.Name | ast.Constant)

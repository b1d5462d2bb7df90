"""The statements around a line of the user's: the loop that polls there, the locks that are held, a branch on the rank, calls ahead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from nsadiag.evidence.records import Place
from nsadiag.source.control import Program
from nsadiag.source.model import Loop, SourceFile, SourceModel, calls_in, name_of, spans
from nsadiag.source.polling import ASKS_INSIDE, ASKS_OUTSIDE

OF_CHILDREN = re.compile(r"is_alive\(|\.ready\(|\.done\(|running\(|exitcode")
MAKERS = frozenset(
    {
        "SharedMemory",
        "ShareableList",
        "Value",
        "Array",
        "RawValue",
        "RawArray",
        "mmap",
        "memmap",
        "share_memory_",
    }
)
STEPS = 4  # from the name that is asked to the call that made it
HARMLESS = {"sleep", "print", "len", "info", "debug", "warning", "range", "time", "monotonic"}


def head(code: SourceModel, at: Place) -> tuple[str, int] | None:
    """The first line of the outermost loop around the line; None outside of loops."""
    file = code.file(at.file)
    nest = file.loops_around(at.line) if file else []
    return (at.file, nest[-1].lineno) if nest else None


def depth(code: SourceModel, at: Place) -> int:
    """The number of loops around the line, in its function."""
    file = code.file(at.file)
    return len(file.loops_around(at.line)) if file else 0


def while_around(code: SourceModel, at: Place) -> ast.While | None:
    """The innermost `while` around the line."""
    file = code.file(at.file)
    return next(iter(file.around(at.line, ast.While)), None) if file else None


def while_at(code: SourceModel, at: Place) -> ast.While | None:
    """The `while` that begins at the line."""
    found = while_around(code, at)
    return found if found is not None and found.lineno == at.line else None


def polled(code: SourceModel, at: Place) -> tuple[Loop, str] | None:
    """The loop around a nap, and the text of all that it asks, with that of the functions it calls in the same file."""
    file = code.file(at.file)
    loop = next(iter(file.loops_around(at.line)), None) if file else None
    if file is None or loop is None:
        return None
    return loop, file.text_with_callees(loop)


def asks(
    code: SourceModel, at: Place, *, has_children: bool
) -> tuple[Literal["outside", "inside"], str] | None:
    """The side that a polling loop asks, the world or its own process, and the loop's condition, as written."""
    found = polled(code, at)
    if found is None:
        return None
    loop, text = found
    children = has_children and OF_CHILDREN.search(text)
    if (ASKS_OUTSIDE.search(text) or children) and not (ASKS_INSIDE.search(text) and not children):
        return "outside", condition(loop)
    calls = set(map(name_of, calls_in(loop)))
    if (
        ASKS_INSIDE.search(text)
        or OF_CHILDREN.search(text)
        or (isinstance(loop, ast.While) and calls <= HARMLESS)
    ):
        return "inside", condition(loop)
    return None


def held(code: SourceModel, at: Place) -> set[str]:
    """Locks that the `with` statements around the line hold, as they are written; at its own line one still asks for it."""
    file = code.file(at.file)
    statements = file.around(at.line, ast.With) if file else []
    within = [s for s in statements if at.line > s.lineno or s.body[0].lineno == at.line]
    return {ast.unparse(item.context_expr) for node in within for item in node.items}


def wanted(code: SourceModel, at: Place) -> set[str]:
    """Locks that the statement at the line takes: `with lock:` or `lock.acquire()`."""
    file = code.file(at.file)
    if file is None:
        return set()
    statements = (node for node in file.all(ast.With) if node.lineno == at.line)
    calls = (call.func for call in file.calls if call.lineno == at.line and name_of(call) == "acquire")
    return {ast.unparse(item.context_expr) for node in statements for item in node.items} | {
        ast.unparse(function.value) for function in calls if isinstance(function, ast.Attribute)
    }


def on_rank(code: SourceModel, frames: tuple[Place, ...]) -> bool:
    """Whether any of these lines stands under an `if` that asks for the rank."""
    program = Program({at.file: file for at in frames if (file := code.file(at.file))})
    around = (condition for at in frames for condition in program.around(at.file, at.line))
    return any(each.kind == "if" and each.provenance == "rank" for each in around)


def statement(loop: ast.While) -> str:
    """The loop's own line, without its colon."""
    return f"while {ast.unparse(loop.test)}".splitlines()[0][:120]


def condition(loop: Loop) -> str:
    """The condition that ends the loop, in one line; what it iterates over where it has none, and "" where nothing does."""
    test = loop.test if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant) else None
    if test is None:
        test = next((n.test for n in ast.walk(loop) if isinstance(n, ast.If) and _leaves(n)), None)
    if test is None:
        test = loop.iter if isinstance(loop, ast.For) else None
    return ast.unparse(test).splitlines()[0][:120] if test is not None else ""


def kept_in(loop: Loop) -> str:
    """The reason that keeps a thread in a loop that it does not leave, in words."""
    if isinstance(loop, ast.For):
        return f"`{ast.unparse(loop.iter).splitlines()[0]}` did not run out"
    leaves = any(isinstance(n, ast.If) and _leaves(n) for n in ast.walk(loop))
    if not isinstance(loop.test, ast.Constant):
        return f"`{condition(loop)}` stayed true"
    return f"`{condition(loop)}` did not come true" if leaves else "nothing in it leaves it"


def _leaves(node: ast.If) -> bool:
    return any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(node))


def asks_memory(code: SourceModel, at: Place) -> bool:
    """Whether the nearest loop around that line asks a name that comes of shared memory in its file."""
    file = code.file(at.file)
    loop = next(iter(file.loops_around(at.line)), None) if file else None
    if file is None or not isinstance(loop, ast.While):
        return False
    tests = [loop.test, *(node.test for node in ast.walk(loop) if isinstance(node, ast.If))]
    names = {name for test in tests for name in _names(test)}
    for _ in range(STEPS):
        values = [value for targets, value in _bindings(file) if targets & names]
        if any(name_of(call) in MAKERS for value in values for call in calls_in(value)):
            return True
        names |= {name for value in values for name in _names(value)}
    return False


def _bindings(file: SourceFile) -> Iterator[tuple[set[str], ast.AST]]:
    """Names, an attribute by its own, and the values that they get."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign):
            # Several names with a value each, in one statement.
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                yield from ((set(_names(name)), value) for name, value in pairs)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield set(_names(node.target)), node.value
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield set(_names(node.optional_vars)), node.context_expr


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Name) and each.id not in ("self", "cls"):
            yield each.id


def calls_ahead(code: SourceModel, at: Place) -> set[str]:
    """Names of the functions that are called there, below, in loops around it, and in functions of its file that are called so."""
    file = code.file(at.file)
    function = file.function_at(at.line) if file else None
    if file is None or function is None:
        return set()
    found = _called(_ahead(function.body, at.line))
    helpers = [each for each in file.functions if each.name in found]
    return found | _called(helpers)


def _called(nodes: Sequence[ast.AST]) -> set[str]:
    return {name.rpartition(".")[2] for node in nodes for call in calls_in(node) if (name := name_of(call))}


def _ahead(body: Sequence[ast.stmt], line: int) -> list[ast.AST]:
    """The statement of that line, whole if it is a loop, and those after it; not the other branch of a condition."""
    for place, statement in enumerate(body):
        if spans(statement, line):
            inner = (
                [] if isinstance(statement, ast.For | ast.AsyncFor | ast.While) else list(_blocks(statement))
            )
            within = next(
                (_ahead(block, line) for block in inner if any(spans(s, line) for s in block)), None
            )
            return [*([statement] if within is None else within), *body[place + 1 :]]
    return []


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value, list):
            yield from (each.body for each in value if isinstance(each, ast.ExceptHandler | ast.match_case))

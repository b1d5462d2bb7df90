"""Exception handlers and clean-ups of the user's: the exceptions that they suppress or pass on."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import SourceFile, last_name
from nsadiag.source.vocabulary import ENDS_PROCESS


def lets_through(file: SourceFile, *, raised_at: int, failed_at: int) -> bool:
    """Whether line `failed_at` is in an `except` or `finally` that would have let an exception of line `raised_at` go on.

    `except Exception: rescue(); raise` and `finally: close()` do not answer what they were entered for.
    """
    return any(_lets_through(one, raised_at, failed_at) for one in file.all(ast.Try))


def _lets_through(one: ast.Try, raised_at: int, failed_at: int) -> bool:
    if _holds(one.finalbody, failed_at):
        return _holds([*one.body, *one.handlers, *one.orelse], raised_at)
    clean_ups = [h for h in one.handlers if _holds(h.body, failed_at)]
    return _holds(one.body, raised_at) and any(_raises_below(h, failed_at) for h in clean_ups)


def _holds(block: Sequence[ast.stmt | ast.ExceptHandler], line: int) -> bool:
    return any(s.lineno <= line <= (s.end_lineno or s.lineno) for s in block)


def _raises_below(handler: ast.ExceptHandler, line: int) -> bool:
    """Whether the handler, below that line, raises what it has caught again, or ends the process.

    One that raises another error speaks for the first, and one that goes on had an answer to it.
    """
    return any(_raises_again(s, handler.name) for s in handler.body if s.lineno > line)


def _raises_again(statement: ast.stmt, name: str | None) -> bool:
    if isinstance(statement, ast.Raise):
        again = statement.exc
        return again is None or (isinstance(again, ast.Name) and again.id == name)
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and last_name(call.func) in ENDS_PROCESS


def swallowing(program: Program, at: Place, *, in_loop: bool) -> list[Condition]:
    """Handlers around the line that would keep an exception from going further, and go on.

    `in_loop`: the loop that has to go on is in the line's own function, so that a handler which leaves that ends it.
    """
    found: list[Condition] = []
    leaves = ast.Raise | ast.Return | ast.Break if in_loop else ast.Raise
    for outer, inner in itertools.pairwise(program.path_to(at.file, at.line)):
        if isinstance(outer, ast.Try) and inner in outer.body:
            found += [program.handler(at.file, h, h.type) for h in outer.handlers if not isinstance(h.body[-1], leaves)]  # fmt: skip
        elif isinstance(outer, ast.With):
            calls = [i.context_expr for i in outer.items if isinstance(i.context_expr, ast.Call)]
            found += [
                program.handler(at.file, outer, call.args[0])
                for call in calls
                if last_name(call.func) == "suppress" and call.args
            ]
    return found

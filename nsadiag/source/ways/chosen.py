"""The line that decides what a loop's work is done for."""

from __future__ import annotations

import ast

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceFile, SourceModel, place


def chosen_by(code: SourceModel, path: str, line: int) -> Place | None:
    """For the innermost loop around that line: the condition on the way to it, else what the loop goes over, where that is made."""
    file = code.file(path)
    loops = [n for n in file.all(ast.For) if n.lineno < line <= (n.end_lineno or 0)] if file else []
    if file is None or not loops:
        return None
    loop = max(loops, key=lambda each: each.lineno)
    conditions = [
        n for n in ast.walk(loop) if isinstance(n, ast.If) and n.lineno < line and _decides(n, line)
    ]
    at = max((n.lineno for n in conditions), default=0) or _made_at(file, loop)
    return place(path, at, None)


def _decides(condition: ast.If, line: int) -> bool:
    """Whether the line is in it, or what is in it leaves this turn of the loop."""
    leaves = any(isinstance(n, ast.Continue | ast.Break) for n in ast.walk(condition))
    return leaves or line <= (condition.end_lineno or 0)


def _made_at(file: SourceFile, loop: ast.For) -> int:
    over = loop.iter.id if isinstance(loop.iter, ast.Name) else None
    named = [
        n.lineno for n in file.all(ast.Assign) for t in n.targets if isinstance(t, ast.Name) and t.id == over
    ]
    return max((each for each in named if each < loop.lineno), default=loop.lineno)

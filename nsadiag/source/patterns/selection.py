"""The line that chooses what a loop goes over."""

from __future__ import annotations

import ast

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceModel, place


def chosen_by(code: SourceModel, path: str, line: int) -> Place | None:
    """Of the innermost loop around that line: the assignment of what it goes over, where it has a name, else the loop's head."""
    file = code.file(path)
    loops = [n for n in file.all(ast.For) if n.lineno < line <= (n.end_lineno or 0)] if file else []
    if file is None or not loops:
        return None
    loop = max(loops, key=lambda each: each.lineno)
    over = loop.iter.id if isinstance(loop.iter, ast.Name) else None
    named = [
        n.lineno for n in file.all(ast.Assign) for t in n.targets if isinstance(t, ast.Name) and t.id == over
    ]
    made = [each for each in named if each < loop.lineno]
    return place(path, max(made) if made else loop.lineno, None)

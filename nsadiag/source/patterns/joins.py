"""torch's contexts under which ranks with fewer inputs answer for their peers' calls: `with Join([model]):`, `with model.join():`."""

from __future__ import annotations

import ast

from nsadiag.source.model import SourceFile, calls_in, name_of

JOINS = {"Join", "join"}


def joins_around(file: SourceFile | None, line: int) -> set[int]:
    """The lines of those around a line, within its function."""
    around = file.around(line, ast.With) if file is not None else []
    return {n.lineno for n in around if any(name_of(c) in JOINS for i in n.items for c in calls_in(i))}

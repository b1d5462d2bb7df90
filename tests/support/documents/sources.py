"""Source texts as the model of them."""

import ast

from nsadiag.source.model import SourceFile


def source_file(path: str, text: str) -> SourceFile:
    """Raises SyntaxError."""
    return SourceFile(path, ast.parse(text), text)

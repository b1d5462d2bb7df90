"""Python's parser, one thread at a time."""

from __future__ import annotations

import ast
import threading

_parsing = threading.Lock()


def parse(text: str) -> ast.Module:
    """The syntax tree of a module. Raises SyntaxError, ValueError, RecursionError.

    In Python 3.11 all threads share one count of the tree's depth: where the garbage collector lets another one parse in
    between, the first ends with a SystemError. Cells of a matrix are judged in threads.
    """
    with _parsing:
        return ast.parse(text)

"""Messages of exceptions that were handled: nobody may ever have shown them, so no code of the user's is run for it."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from nsadiag.worker.place import is_user_code

PLAIN = (str, bytes, int, float, complex, bool, type(None))
CONTAINERS = (list, tuple, set, frozenset)
ARRAYS = ("Tensor", "Parameter", "DTensor", "ndarray")  # long to show, and on a GPU waited for
MOST_ITEMS, MOST_DEEP = 100, 3


def message_of(error: BaseException) -> str:
    """`str(error)`; where that would run the user's code or show tensors, its arguments, those by the names of their types."""
    show = type(error).__str__
    if isinstance(show, FunctionType) and not is_user_code(show.__code__):
        return str(error)
    if hasattr(error, "exceptions") or all(_is_plain(value, MOST_DEEP) for value in error.args):
        return str(error) if not isinstance(show, FunctionType) else BaseException.__str__(error)
    return ", ".join(
        str(value) if _is_plain(value, MOST_DEEP) else f"<{type(value).__name__}>" for value in error.args
    )


def _is_plain(value: Any, deep: int) -> bool:
    kind = type(value)
    if kind in PLAIN:
        return True
    if kind in CONTAINERS or kind is dict:
        items = (*value, *value.values()) if kind is dict else value
        return bool(deep) and len(value) <= MOST_ITEMS and all(_is_plain(item, deep - 1) for item in items)
    home = kind.__module__.partition(".")[0]
    if home == "collections" or kind.__name__ in ARRAYS:
        return False
    return home in ("torch", "numpy") or home in sys.stdlib_module_names

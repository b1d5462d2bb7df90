"""Modules of the standard library for which the program has one of its own: a `resource.py` beside the script.

We import Python's, wherever the program's path begins, and the program then finds its own, as if we had imported nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

from nsadiag.worker.interruptions import tolerated

_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib costs 10 ms at start-up
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of the interpreter that take the next word


@contextlib.contextmanager
def standard_library_first(before: set[str], *, at_start: bool = False) -> Iterator[None]:
    """Around imports of ours; `before` are the modules that there were without us.

    `at_start`: Python has not put the program's own folder on the path yet.
    """
    preceding = [*(_folder_of_the_program() if at_start else ()), *_preceding()]
    ours = [entry for entry in sys.path if _is_standard(entry)] if preceding else []
    sys.path[:0] = ours
    try:
        yield
    finally:
        # Whoever was imported may have added to the path.
        if sys.path[: len(ours)] == ours:
            del sys.path[: len(ours)]
        if preceding:
            _forget(set(sys.modules) - before, preceding)


def _preceding() -> list[str]:
    """Folders that precede the standard library on the program's path: its own, and those of PYTHONPATH."""
    found = []
    for entry in sys.path:
        if _is_standard(entry):
            break
        found.append(entry)
    return found


def _is_standard(entry: str) -> bool:
    return entry.startswith(_STANDARD) and not entry.endswith("-packages")


def _folder_of_the_program() -> list[str]:
    """The folder that becomes `sys.path[0]` when start-up is over."""
    if getattr(sys.flags, "safe_path", False):
        return []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word.startswith(("-c", "-m")) or word == "-":
            break
        elif not word.startswith("-"):
            script = os.path.realpath(word)
            return [script if os.path.isdir(script) else os.path.dirname(script)]  # noqa: PTH112, PTH120
    with tolerated(OSError):  # it may be gone
        return [os.getcwd()]  # noqa: PTH109
    return []


def _forget(imported: set[str], preceding: list[str]) -> None:
    for top in {name.partition(".")[0] for name in imported} & sys.stdlib_module_names:
        spec = PathFinder.find_spec(top, preceding)
        if spec is None or spec.loader is None:  # a folder without modules is none
            continue
        for name in [n for n in imported if n == top or n.startswith(f"{top}.")]:
            sys.modules.pop(name, None)

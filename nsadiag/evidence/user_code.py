"""The user's own code: the script that the person runs, wherever it is, and all files that are not installed.

One definition for the ranks, the agent and the analysis. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

NAMED = "NSADIAG_USER_CODE"  # packages, with commas between them
# And what was never a file.
STANDARD = re.compile(r"^<|/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)")
# What was typed rather than saved: nobody can read it later, but in the process its lines are the user's.
TYPED = ("<string>", "<stdin>", "<ipython")
# What of ours runs in a rank, in a checkout as well.
OURS = re.compile(r"/nsadiag/(?:__init__\.py$|worker/|agent/|evidence/)")
INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
NOT_A_LIBRARY = re.compile(r".*/(?:site|dist)-packages/(?:torch|functorch|nsadiag)/")
# The scripts of `nsadiag demo`, where they are installed.
DEMO = "nsadiag/repro"
# They run other people's code: to be the entry point does not make them the user's.
RUNNERS = frozenset(
    {
        "torch", "accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning",
        "transformers", "ray", "submitit", "horovod", "ipykernel", "ipykernel_launcher", "IPython", "debugpy",
        "coverage", "pytest", "_pytest", "pdb", "cProfile", "nsadiag", "pip",
    }
)  # fmt: skip
# What pip, uv and setuptools write for an entry point: `from package.cli import main`, `sys.exit(main())`.
CALLED = re.compile(r"^\s*sys\.exit\((?P<name>\w+)(?:\.\w+)*\(\)\)", re.MULTILINE)
MOST_BYTES = 8192
# What multiprocessing gives to `python -c`: such a process was not started by a person, but its parent may have been.
SPAWNED = ("from multiprocessing.", "from torch.multiprocessing.")
MOST_PARENTS = 4
# Options of the interpreter that take the next word.
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# A package, or the part of one that lies below its parents: it is compared with what stands behind `site-packages/`.
NAME = re.compile(r"\w[\w./-]*")

_roots: ContextVar[tuple[str, ...]] = ContextVar("user_code", default=())


def is_user(file: str) -> bool:
    """Whether a frame's file is the user's own code, in the run that is being looked at."""
    return is_user_of(file, _roots.get())


@functools.lru_cache(maxsize=8192)
def is_user_of(file: str, roots: tuple[str, ...]) -> bool:
    """The same, where these packages count as the user's."""
    if not file or STANDARD.search(file) or is_ours(file):
        return False
    installed = INSTALLED.match(file)
    return installed is None or _is_below(file[installed.end() :], (DEMO, *roots))


def is_ours(file: str) -> bool:
    """Whether it is of the part of nsadiag that runs in ranks."""
    return OURS.search(file) is not None


def is_infrastructure(file: str) -> bool:
    """Whether it is of what lies below everything: the standard library, torch or ours. What was typed is not."""
    if file.startswith(TYPED):
        return False
    return bool(STANDARD.search(file) or NOT_A_LIBRARY.match(file)) or is_ours(file)


def is_installed(file: str) -> bool:
    """Whether it is an installed package's, and not the user's."""
    return INSTALLED.match(file) is not None and not is_user(file)


def is_library(file: str) -> bool:
    """The same, of neither torch's nor ours."""
    return is_installed(file) and not NOT_A_LIBRARY.match(file)


def package_of(file: str) -> str:
    """The installed package that the file belongs to; empty where it is none's."""
    installed = INSTALLED.match(file)
    return file[installed.end() :].partition("/")[0].removesuffix(".py") if installed else ""


@contextlib.contextmanager
def counted(roots: Iterable[str]) -> Iterator[None]:
    """Within the block these packages are the user's code, and no others."""
    token = _roots.set(tuple(sorted(set(roots))))
    try:
        yield
    finally:
        _roots.reset(token)


def count_as_well(roots: Iterable[str]) -> None:
    """From now on, in this thread, these are the user's code too: ranks appear one by one."""
    known = _roots.get()
    if not set(roots) <= set(known):
        _roots.set(tuple(sorted({*known, *roots})))


def roots_in(document: object) -> tuple[str, ...]:
    """The user's roots in a rank's meta.json; malformed values are ignored."""
    found = document.get("user_code") if isinstance(document, dict) else None
    return valid_roots(found) if isinstance(found, list) else ()


def valid_roots(names: Iterable[object]) -> tuple[str, ...]:
    """Those of them that can be the user's packages."""
    return tuple(name for name in names if isinstance(name, str) and NAME.fullmatch(name))


def roots_of(line: Sequence[str], parent: int) -> list[str]:
    """Packages that count as the user's: of the entry point, and those that the environment names.

    `line` is how the process was started; that of its `parent` tells where multiprocessing has started it.
    """
    for _ in range(MOST_PARENTS):
        if not any(word.startswith(SPAWNED) for word in line):
            break
        line, parent = _line_of(parent), _parent_of(parent)
    named = (name.strip() for name in os.environ.get(NAMED, "").split(","))
    return sorted({*_of_line(line), *(name.replace(".", "/") for name in named if NAME.fullmatch(name))})


def _line_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path.startswith(f"{root}/") or path == f"{root}.py" for root in roots)


def _of_line(line: Sequence[str]) -> list[str]:
    """By `python -m NAME` or `python SCRIPT`; nothing for `python -c` and what is no Python."""
    words = iter(line[1:])
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word == "-m":
            return _of_module(next(words, ""))
        elif word.startswith("-m"):
            return _of_module(word[2:])
        elif word == "-" or word.startswith("-c"):
            return []
        elif not word.startswith("-"):
            return _of_script(word)
    return []


def _of_module(name: str) -> list[str]:
    package = name.partition(".")[0]
    return [package] if package and package not in RUNNERS else []


def _of_script(script: str) -> list[str]:
    """The package in which it lies, or whose entry point it is."""
    installed = INSTALLED.match(script)
    if installed is not None:
        path = script[installed.end() :]
        return [] if path.startswith(DEMO) else _of_module(path.removesuffix(".py").replace("/", "."))
    return _of_entry_point(script) if not script.endswith(".py") else []


def _of_entry_point(script: str) -> list[str]:
    try:
        with Path(script).open(errors="replace") as file:
            text = file.read(MOST_BYTES)
    except (OSError, ValueError):
        return []
    called = CALLED.search(text)
    source = re.search(rf"^from ([\w.]+) import {called['name']}\b", text, re.MULTILINE) if called else None
    return _of_module(source[1]) if source else []

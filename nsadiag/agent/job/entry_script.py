"""The Python script that a command line runs, where the line alone leaves no doubt.

A word that ends in `.py` may be relative to wherever `env -C`, `srun --chdir` or a shell goes first, lie in a container or on
another host, or name a file that the job is to write. Only of a Python interpreter and of torchrun is it known which
word they open, and from where.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from nsadiag.errors import UsageError

PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?")
# CPython's own options (Python/getopt.c): those of one letter, and those that take a value.
SWITCHES, WITH_VALUE = frozenset("bBdEiIOPqRsSuvx"), frozenset("WX")
HASH_BASED_PYCS = "--check-hash-based-pycs"
TORCHRUN = b"torch.distributed.run"
TORCHRUN_SWITCHES = frozenset({"standalone", "virtual-local-rank"})
TORCHRUN_WITH_VALUE = frozenset(
    {
        "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
        "monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee",
        "local-ranks-filter", "node-rank", "master-addr", "master-port", "local-addr", "logs-specs",
    }
)  # fmt: skip
# torchrun's options are variables as well; with any of these its first argument is no script.
NO_SCRIPT = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH")


def check_script(command: Sequence[str]) -> None:
    """Raises UsageError if the line runs a script that is not there."""
    script = entry_script(command)
    if script is not None:
        _check_file(script)


def check_words(words: Sequence[str]) -> None:
    """Raises UsageError if they name a script that is not there: words that our own launcher runs, `-m MODULE` or a script."""
    if words[0] != "-m":
        _check_file(words[0])


def _check_file(script: str) -> None:
    try:
        os.stat(script)  # noqa: PTH116 - one that may not be looked at may be there
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no such script: {script}", f"paths are relative to {Path.cwd()}") from None
    except (OSError, ValueError):
        return


def entry_script(command: Sequence[str]) -> str | None:
    """The script that the line runs, from this directory; None where it runs none, or that is not certain."""
    name, found = Path(command[0]).name, shutil.which(command[0])
    if found is None:
        return None
    if PYTHON.fullmatch(name) and _begin(found).startswith(b"\x7fELF"):  # no wrapper of that name
        return _of_python(iter(command[1:]))
    if name == "torchrun" and TORCHRUN in _begin(found) and not any(map(os.environ.get, NO_SCRIPT)):
        return _of_torchrun(iter(command[1:]))
    return None


def _begin(program: str) -> bytes:
    try:
        with open(program, "rb") as file:  # noqa: PTH123
            return file.read(4096)
    except OSError:
        return b""


def _of_python(words: Iterator[str]) -> str | None:
    for word in words:
        if word == "--":
            return next(words, None) or None
        if word == HASH_BASED_PYCS:
            next(words, None)
        elif not word.startswith("-"):
            return word or None
        elif not _passes_over(word[1:], words):
            return None
    return None


def _passes_over(letters: str, words: Iterator[str]) -> bool:
    """Whether options in one word are those with which a script still follows; what belongs to them is taken."""
    for place, letter in enumerate(letters):
        if letter in WITH_VALUE:
            if place + 1 == len(letters):
                next(words, None)
            return True
        if letter not in SWITCHES:
            return False  # -c, -m, or -h; or one that is new
    return bool(letters)  # a bare - is stdin


def _of_torchrun(words: Iterator[str]) -> str | None:
    for word in words:
        if not word.startswith("-"):
            return word or None
        name, equals, _ = word.removeprefix("--").replace("_", "-").partition("=")
        if not word.startswith("--") or (name not in TORCHRUN_WITH_VALUE and name not in TORCHRUN_SWITCHES):
            return None  # of an option of another version, or a shortened one, it is not known what it takes
        if name in TORCHRUN_WITH_VALUE and not equals:
            next(words, None)
    return None

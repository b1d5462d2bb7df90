"""Errors meant for a person: what happened, what to do, and the exit code that goes with it."""

from __future__ import annotations

import errno
from collections.abc import Iterable

EXIT_HEALTHY = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_INTERNAL = 4
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130


class NsadiagError(Exception):
    """A mistake or an obstacle that the person at the keyboard can do something about."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NsadiagError):
    """The call itself is off: a wrong argument, a spec with an unknown key, a file that is not there."""


class MachineError(NsadiagError):
    """Something that the machine should offer is missing or refused."""

    exit_code = EXIT_ENVIRONMENT


def unwritable(error: OSError) -> MachineError:
    """For a file that could not be written."""
    why = error.strerror or str(error)
    hint = (
        "remove the directory"
        if error.errno == errno.EISDIR
        else "check space and permission (df -h, ls -ld)"
    )
    return MachineError(f"cannot write {error.filename}: {why[:1].lower()}{why[1:]}", hint)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the nearest word; empty where none is near."""
    import difflib  # a mistake alone needs it

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""

"""Phases that the training code names itself: `with nsadiag.phase("evaluate"):`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.place import user_place

RUN_DIR = "NSADIAG_RUN_DIR"
MOST_NAMES = 256  # a phase named after each step must not fill the table of names
ONE_OF_MANY = "one of many"
_names: set[str] = set()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name what this rank does in the block, for the timeline, `nsadiag top` and the verdict. Phases may nest.

    Does nothing in a process that is not recorded, so it may stay in the code.
    """
    number = _begin(name)
    try:
        yield
    finally:
        if number is not None:
            _end(number)


def _begin(name: str) -> int | None:
    # Who names a phase of its training is a rank, though nothing else may have said so yet.
    rank = session.current() or (session.ensure_rank() if RUN_DIR in os.environ else None)
    if rank is None:
        return None
    with tolerated(Exception):
        if name not in _names and len(_names) >= MOST_NAMES:
            name = ONE_OF_MANY
        _names.add(name)
        number: int = rank.names(str(name))
        rank.emit(Kind.PHASE, Phase.BEGIN, number, 0, 0, rank.names("\t" + user_place()))
        return number
    return None


def _end(number: int) -> None:
    rank = session.current()
    if rank is not None:
        with tolerated(Exception):
            rank.emit(Kind.PHASE, Phase.END, number)

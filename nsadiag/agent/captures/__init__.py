"""Looks at a rank from outside, in order of cost; each is bounded in time and its failure is itself evidence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nsadiag.agent.captures.flight_recorder import flight_recorder
from nsadiag.agent.captures.proc import proc
from nsadiag.agent.captures.py_spy import native_stack, python_stack
from nsadiag.agent.captures.target import Target
from nsadiag.agent.captures.traceback import traceback
from nsadiag.evidence.layout import make_private_dir, read_json, write_json

Capture = Callable[[Target], None]

CAPTURES: dict[str, Capture] = {
    "proc": proc,
    "py_spy": python_stack,
    "fr": flight_recorder,
    "traceback": traceback,
    "native": native_stack,
}
# The native stack costs a second or more a rank: once is enough.
QUICK = ("proc", "py_spy", "fr", "traceback")


def capture_rank(target: Target, names: tuple[str, ...]) -> None:
    """Runs the named captures; what could not be had goes into gaps.json with the reason."""
    gaps = []
    # Where the disk is full not even a gap can be written down: the look shows nothing, and the job goes on.
    with contextlib.suppress(OSError):
        make_private_dir(target.directory.path)
    for name in names:
        started = time.monotonic()
        try:
            CAPTURES[name](target)
        except Exception as error:
            gaps.append({"capture": name, "gap": str(error), "seconds": round(time.monotonic() - started, 3)})
    if gaps:
        with contextlib.suppress(OSError):
            write_json(target.directory.gaps, [*read_json(target.directory.gaps, []), *gaps])


def capture_all(targets: list[Target], *, native: bool) -> None:
    """All ranks at once: their places are to be compared, so they should be of one moment."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda target: capture_rank(target, QUICK), targets))
    if native:
        capture_slow(targets)


def capture_slow(targets: list[Target]) -> None:
    """What costs a second or more a rank, and pauses it for as long: for a job that is known to be stuck."""
    slow = tuple(name for name in CAPTURES if name not in QUICK)
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda target: capture_rank(target, slow), targets))

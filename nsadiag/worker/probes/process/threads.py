"""Threads that an interpreter waits for at its end, with the user's line that started each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.patch import harmless, replaced, stands_for

FEEDER = "QueueFeederThread"  # multiprocessing's: a daemon, and joined all the same
KEPT = 256
_noted = 0


@harmless
def _note(thread: threading.Thread) -> None:
    global _noted
    rank = session.current()
    if rank is None or _noted >= KEPT or (thread.daemon and thread.name != FEEDER):
        return
    _noted += 1
    append_json_line(
        rank.directory.threads,
        {"tid": thread.native_id, "name": thread.name, "place": user_place(), "step": rank.box.step},
    )


def _observed(start: Callable[..., None]) -> Callable[..., None]:
    @stands_for(start)
    def observed(self: Any) -> None:
        start(self)
        _note(self)

    return observed


@contextlib.contextmanager
def threads() -> Iterator[None]:
    """Threads that are joined at exit: pools', those that are no daemons, feeders of multiprocessing's queues (threads.jsonl)."""
    with replaced(threading.Thread, "start", _observed(threading.Thread.start)):
        yield

"""An agent that an engine keeps: jobs come in on stdin, one a line, and their exit codes go out on stdout.

It ends with its input, and what runs then is ended and written down: whoever started it may have been killed. It leaves
the family of its parent first, which may be killed with all its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.engines.pool import LauncherPool
from nsadiag.evidence.layout import RunDir, make_private_dir, open_private, this_node

LAST_S = 60.0  # from the end of its input on, an agent that is stuck ends all the same


class Pools:
    """The warm launchers of an agent; of one that is kept they are at hand for the next cell."""

    def __init__(self) -> None:
        self._pools: dict[tuple[Path, tuple[str, ...]], LauncherPool] = {}

    def of(self, directory: RunDir, preload: tuple[str, ...]) -> LauncherPool:
        """The pool whose log is in that directory, under this node's name."""
        log = make_private_dir(directory.node(this_node())) / "launcher.log"
        return self._pools.setdefault((log, preload), LauncherPool(log, preload=preload))

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def serve(work: Callable[[list[str]], int]) -> None:
    """`work` runs one job by its arguments; a job's line also has its environment and the file for its output."""
    if os.fork():
        os._exit(0)
    os.setsid()
    answers = os.fdopen(os.dup(1), "w")
    jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), name="nsadiag-jobs", daemon=True).start()
    while (job := jobs.get()) is not None:
        with _surroundings(job["env"], Path(job["log"])):
            code = work(job["arguments"])
        with contextlib.suppress(BrokenPipeError):
            print(code, file=answers, flush=True)
        interrupts.check()


def _read(jobs: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    jobs.put(None)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_S)
    os._exit(1)


@contextlib.contextmanager
def _surroundings(env: Mapping[str, str], log: Path) -> Any:
    """Environment variables and log file of one job, for the duration of the block."""
    before = dict(os.environ)
    os.environ.update(env)
    with open_private(log, "ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)

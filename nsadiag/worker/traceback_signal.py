"""A signal at which faulthandler writes all stacks: from C, so it works while the GIL is held.

The agent sends it to an idle thread of torch's worker server, never to one of the job's own.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import TYPE_CHECKING

from nsadiag.evidence.layout import open_private

if TYPE_CHECKING:
    from nsadiag.worker.runtime import Runtime

# Real-time, in the middle: glibc keeps the first two, systemd and container tools use the next few and the last.
NUMBER = signal.SIGRTMIN + 11


def register(runtime: Runtime) -> int | None:
    """The signal's number; None where the user has a handler for it, or the platform has no such signals."""
    if signal.getsignal(NUMBER) is not signal.SIG_DFL:
        return None
    try:
        file = open_private(runtime.directory.tracebacks, "a")
        runtime.keep.append(file)
        # Restarts what system call it can, and leaves every other handler alone.
        faulthandler.register(NUMBER, file=file, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        runtime.gap(f"no stacks by signal: {error!r}")
        return None
    return int(NUMBER)

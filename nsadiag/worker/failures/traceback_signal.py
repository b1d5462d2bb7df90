"""A signal at which faulthandler writes all stacks: from C, so it works while the GIL is held.

The agent sends it to an idle thread of torch's worker server, never to one of the job's own.
"""

from __future__ import annotations

import signal

# Real-time, in the middle: glibc keeps the first two, systemd and container tools use the next few and the last.
NUMBER = signal.SIGRTMIN + 11


def is_free() -> bool:
    """Whether the user has no handler for it."""
    return signal.getsignal(NUMBER) is signal.SIG_DFL

"""Ends of ranks as a scheduler, a shell or the kernel states them, in the form in which the agent records them."""

from __future__ import annotations

import signal

from nsadiag.evidence.documents.watch import End
from nsadiag.evidence.messages import ProcessEnd

# In the words of strsignal(3), which shells and srun print.
SIGNALS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT, "Bus error": signal.SIGBUS,
    "Terminated": signal.SIGTERM, "Illegal instruction": signal.SIGILL, "Floating point exception": signal.SIGFPE,
}  # fmt: skip
BY_SHELLS = 128  # and the signal is the exit code of a command that one ended


def end_of(stated: ProcessEnd) -> End | None:
    """None where the message has neither a code nor a signal."""
    code, by = stated.code, _signal(stated.signal)
    if code is not None and code < 0:
        return End(pid=stated.pid, t_s=0.0, signal=-code)
    if code is not None and BY_SHELLS < code < BY_SHELLS + 65:
        return End(pid=stated.pid, t_s=0.0, signal=code - BY_SHELLS)
    if code is None and by is None:
        return None
    return End(pid=stated.pid, t_s=0.0, signal=by, exit_code=code)


def _signal(name: str) -> int | None:
    known = SIGNALS.get(name) or signal.Signals.__members__.get(name)
    return int(known) if known else None

"""Signals by which processes ended, as launchers, schedulers and shells write them."""

from __future__ import annotations

import signal

from nsadiag.evidence.messages import ProcessEnd

# In the words of strsignal(3), which shells and srun print.
WORDS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT, "Bus error": signal.SIGBUS,
    "Terminated": signal.SIGTERM, "Illegal instruction": signal.SIGILL, "Floating point exception": signal.SIGFPE,
}  # fmt: skip
BY_SHELLS = 128  # and the signal is the exit code of a command that one ended
OF_LAUNCHERS = ("SIGTERM", "SIGINT", "SIGHUP")  # sent to the ranks that are left, or by hand


def signal_of(end: ProcessEnd) -> int | None:
    """The signal, by its name or by the code; None where it ended otherwise."""
    code = end.code
    if code is not None and code < 0:
        return -code
    if code is not None and BY_SHELLS < code < BY_SHELLS + 65:
        return code - BY_SHELLS
    if end.signal.isdigit():
        return int(end.signal)
    known = WORDS.get(end.signal) or signal.Signals.__members__.get(end.signal)
    return int(known) if known else None


def killed_by(end: ProcessEnd) -> str:
    """The signal's name; empty where it ended otherwise, or by one that launchers send."""
    number = signal_of(end)
    try:
        name = signal.Signals(number).name if number else ""
    except ValueError:
        return ""
    return "" if name in OF_LAUNCHERS else name

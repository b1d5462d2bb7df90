"""Signals by which processes ended, as launchers, schedulers and shells write them."""

from __future__ import annotations

import signal

from nsadiag.evidence.messages import ProcessEnd

# A shell's words; 128 and the number is its exit code for the same.
WORDS = {
    "Killed": "SIGKILL",
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
BY_SHELL = 128
OF_LAUNCHERS = ("SIGTERM", "SIGINT", "SIGHUP")  # sent to the ranks that are left, or by hand


def killed_by(end: ProcessEnd) -> str:
    """The signal's name; empty where it ended otherwise, or by one that launchers send."""
    name = next((name for word, name in WORDS.items() if word in end.signal), end.signal)
    if not name.startswith("SIG"):
        name = _name_of(int(name) if name.isdigit() else end.code)
    return "" if name in OF_LAUNCHERS else name


def _name_of(code: int | None) -> str:
    if code is None or BY_SHELL >= code >= 0:
        return ""
    try:
        return signal.Signals(-code if code < 0 else code - BY_SHELL).name
    except ValueError:
        return ""

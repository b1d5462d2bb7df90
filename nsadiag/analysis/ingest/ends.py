"""Ends of ranks that the agent did not see, from the launcher's report or the rank's own."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from nsadiag.evidence.documents.exceptions import Leaving
from nsadiag.evidence.documents.watch import End

FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
TORCHRUN_SAW = re.compile(r"exitcode:? *:? *(-?\d+)\)? .*?\(?pid: (\d+)\)")


def completed_end(end: End, faults: str, launcher: str, leaving: Leaving | None = None) -> End:
    """The rank's end; where its launcher reaped it before we could look, as faulthandler, torchrun or its last call tell it."""
    if end.t_s is None or end.signal is not None or end.exit_code is not None:
        return end
    for words, number in FATAL.items():
        if f"Fatal Python error: {words}" in faults:
            return replace(end, signal=int(number))
    for code, pid in TORCHRUN_SAW.findall(launcher):
        if int(pid) == end.pid:
            return replace(end, signal=-int(code)) if int(code) < 0 else replace(end, exit_code=int(code))
    # Of its own call to exit nobody knows whether it was caught; multiprocessing's ends the process.
    code = leaving.ended_with if leaving else None
    return replace(end, exit_code=code) if code is not None else end

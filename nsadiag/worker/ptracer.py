"""Lets this process be read from outside, where the kernel allows a process to say so (Yama, ptrace_scope 1).

There only a process's parents may look into it, and the agent is none of them. It stays a matter of the same user:
what a debugger started by hand needs is what is granted.
"""

from __future__ import annotations

from pathlib import Path

from nsadiag.worker.interruptions import pass_on

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
RESTRICTED = "1"  # 0 needs no consent, 2 and 3 take none
PR_SET_PTRACER = 0x59616D61
ANY = -1


def allow(scope: Path = SCOPE) -> bool:
    """Whether the kernel asked for consent, and was given it. Not inherited: forked children say so themselves."""
    try:
        if scope.read_text().strip() != RESTRICTED:
            return False
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANY), 0, 0, 0) == 0)
    except Exception as error:
        pass_on(error)
        return False

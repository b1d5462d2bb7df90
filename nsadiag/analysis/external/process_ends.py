"""Ends of ranks as a scheduler, a shell or the kernel states them, in the form in which the agent records them."""

from __future__ import annotations

from nsadiag.analysis.facts.texts.signals import signal_of
from nsadiag.evidence.documents.watch import End
from nsadiag.evidence.messages import ProcessEnd


def end_of(stated: ProcessEnd) -> End | None:
    """None where the message has neither a code nor a signal."""
    by = signal_of(stated)
    if stated.code is None and by is None:
        return None
    return End(pid=stated.pid, t_s=0.0, signal=by, exit_code=stated.code if by is None else None)

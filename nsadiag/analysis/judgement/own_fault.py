"""A rank that is blocked on a lock of nsadiag's own: a fault of ours, and no verdict about the user's code."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.records import Evidence, Finding, Strength
from nsadiag.evidence.user_code import INSTALLED, STANDARD, is_ours
from nsadiag.source.archive import is_source

TAKES = re.compile(r"lock|acquire", re.IGNORECASE)


def instead(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding, or one that accuses nobody of the job where a guilty rank stands at such a lock."""
    if cause.outcome != "hung":
        return cause
    for rank in cell.ranks:
        capture = rank.last_capture
        frame = _at_our_lock(capture.main_frames) if capture else None
        if rank.rank in cause.guilty_ranks and capture and frame:
            at = f"{frame.filename.rpartition('/nsadiag/')[2]}:{frame.line}"
            return Finding(
                mechanism="own_fault",
                cls="unknown",
                outcome="hung",
                strength=Strength.CONCLUSIVE,
                summary=f"Rank {rank.rank} waits for a lock of nsadiag's own, at {at}: a fault of nsadiag, not of the job.",
                blocked_ranks=cause.blocked_ranks,
                evidence=(
                    Evidence(
                        claim=f"the innermost frame that is not Python's own is nsadiag's {frame.name}",
                        source=f"{capture.source}/py_spy.json",
                    ),
                ),
                fix="Run the job with --probes none, and report this with the run's directory.",
                next="nsadiag report --format issue",
            )
    return cause


def _at_our_lock(frames: Iterable[StackFrame]) -> StackFrame | None:
    """The innermost frame that is not the standard library's, if it is ours, and its line takes a lock."""
    inner = next((f for f in frames if not _is_pythons(f.filename)), None)
    if inner is None or not is_ours(inner.filename):
        return None
    file, line = inner.filename, inner.line
    return inner if is_source(file) and TAKES.search(linecache.getline(file, line)) else None


def _is_pythons(file: str) -> bool:
    return STANDARD.search(file) is not None and INSTALLED.match(file) is None

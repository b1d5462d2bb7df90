"""Ends of ranks that the agent did not see, from the launcher's report or the rank's own."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.exceptions import Leaving
from nsadiag.evidence.documents.watch import End
from nsadiag.evidence.iterations import ANCHORS
from nsadiag.evidence.ring.blackbox import Kind, Phase

FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
# Sent by people, shells and schedulers to end a job.
TERMINATING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
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


def interrupted_by_others(cell: CellEvidence) -> CellEvidence:
    """The cell as one that we interrupted, where somebody else ended all its ranks while they stood still.

    Whoever kills the launcher of a job that hangs does what Ctrl-C does under `nsadiag run`. One that went on after its last
    silence is ended so by schedulers: that is told by its signal (rules.exits.rank_killed).
    """
    last = cell.watch.last_look
    if last is None or last.judgement != "still" or cell.watch.stopped is not None or cell.absent:
        return cell
    if any(rank.end.by_us or not _was_terminated(rank) for rank in cell.ranks):
        return cell
    looked_s = max((last.t_s + m.seconds for m in last.motions), default=last.t_s)
    looked_ns = cell.started_mono_ns + int(looked_s * 1e9)
    if any(_may_have_worked_since(rank, looked_ns) for rank in cell.ranks):
        return cell
    ranks = tuple(replace(rank, end=replace(rank.end, by_us=True)) for rank in cell.ranks)
    # What handlers of that signal do is no progress, and would count as the last.
    silent_from_s = min((last.t_s + m.seconds - m.silent_s for m in last.motions), default=last.t_s)
    moved_s = min(silent_from_s, cell.watch.last_progress_s or silent_from_s)
    return replace(cell, ranks=ranks, watch=replace(cell.watch, stopped="interrupt", last_progress_s=moved_s))


def _was_terminated(rank: RankEvidence) -> bool:
    """Whether such a signal ended it; whoever is no parent of its sees of SIGINT only what Python makes of it."""
    return rank.end.signal in TERMINATING or rank.is_interrupted


def _may_have_worked_since(rank: RankEvidence, t_ns: int) -> bool:
    """Whether it completed a step, or began a part of one, after that moment, or nobody recorded what it did.

    What ends it leaves other events.
    """
    events = rank.recording.events
    newer = events[events["t_ns"] > t_ns]
    began = newer[newer["phase"] == Phase.BEGIN]["kind"].isin(ANCHORS)
    return not len(events) or bool(began.any() or (newer["kind"] == Kind.STEP).any())

"""Jobs that stood still until somebody else ended them: a person, a shell, a scheduler."""

from __future__ import annotations

import signal
from dataclasses import replace

from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer
from nsadiag.analysis.facts.exits import gave_up
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.iterations import ANCHORS
from nsadiag.evidence.ring.blackbox import Kind, Phase

# Sent to end a job.
TERMINATING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def interrupted_by_others(cell: CellEvidence) -> CellEvidence:
    """The cell as one that we interrupted, where somebody else ended its ranks while they stood still.

    Whoever kills the launcher of a job that hangs, or one of its ranks, does what Ctrl-C does under `nsadiag run`. One that went
    on after its last silence is ended so by schedulers: that is told by its signal (rules.exits.rank_killed).
    """
    last = cell.watch.last_look
    if last is None or last.judgement != "still" or cell.watch.stopped is not None or cell.absent:
        return cell
    looked_s = max((last.t_s + m.seconds for m in last.motions), default=last.t_s)
    looked_ns = cell.started_mono_ns + int(looked_s * 1e9)
    killed = _is_killed_by_others(cell)
    by_others = [r for r in cell.ranks if _was_terminated(r) or (killed and _was_killed(cell, r))]
    followers = [r for r in cell.ranks if killed and by_others and _follows(cell, r, looked_ns)]
    # Whoever was gone when the others were looked at was gone first.
    stood = [r for r in (*by_others, *followers) if not r.end.by_us and last.of(r.rank)]
    idle = {r.rank for r in stood if not _may_have_worked_since(r, looked_ns)}
    if len(idle) < len(cell.ranks):
        return cell
    ranks = tuple(replace(rank, end=replace(rank.end, by_us=True)) for rank in cell.ranks)
    # What handlers of that signal do is no progress, and would count as the last.
    silent_from_s = min((last.t_s + m.seconds - m.silent_s for m in last.motions), default=last.t_s)
    moved_s = min(silent_from_s, cell.watch.last_progress_s or silent_from_s)
    # What a rank says because its peer was ended is no failure either.
    ending_s = looked_s if followers else cell.watch.ending_s
    watch = replace(cell.watch, stopped="interrupt", last_progress_s=moved_s, ending_s=ending_s)
    return replace(cell, ranks=ranks, watch=watch)


def _was_terminated(rank: RankEvidence) -> bool:
    """Whether such a signal ended it; whoever is no parent of its sees of SIGINT only what Python makes of it."""
    return rank.end.signal in TERMINATING or rank.is_interrupted


def _is_killed_by_others(cell: CellEvidence) -> bool:
    """Whether a SIGKILL that came after a hang was suspected may have been sent because of it: neither a rank nor the kernel did."""
    stands = bool(cell.watch.suspicions) and cell.watch.suspicions[-1].withdrawn_s is None
    by_kernel = any(report.kernel or report.grown for report in cell.oom)
    by_a_rank = any(row.signal == signal.SIGKILL for rank in cell.ranks for row in rank.signals)
    return stands and not by_kernel and not by_a_rank


def _was_killed(cell: CellEvidence, rank: RankEvidence) -> bool:
    """Whether a SIGKILL ended it; where its launcher was killed nobody is left to see that."""
    end = rank.end
    unseen = end.t_s is not None and end.signal is None and end.exit_code is None and rank.exception is None
    return end.signal == signal.SIGKILL or (unseen and cell.watch.launcher_exit_code == -signal.SIGKILL)


def _follows(cell: CellEvidence, rank: RankEvidence, t_ns: int) -> bool:
    """Whether it failed after that moment for want of a peer."""
    raised = rank.exception
    follows = raised is not None and raised.t_mono_ns > t_ns and follows_a_peer(first_of(raised))
    return follows or gave_up(cell, rank)


def _may_have_worked_since(rank: RankEvidence, t_ns: int) -> bool:
    """Whether it completed a step, or began a part of one, after that moment, or nobody recorded what it did.

    What ends it leaves other events.
    """
    events = rank.recording.events
    newer = events[events["t_ns"] > t_ns]
    began = newer[newer["phase"] == Phase.BEGIN]["kind"].isin(ANCHORS)
    return not len(events) or bool(began.any() or (newer["kind"] == Kind.STEP).any())

"""The last that is known of a rank, in a few words: the call it waits in, its line, or how it ended."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.records import Verdict
from nsadiag.reports.values import signal_name

WORDS = {
    "collective": "waiting in a collective",
    "transfer": "waiting in a send or receive",
    "rendezvous": "creating or leaving a process group",
    "store": "asking the key-value store",
    "backward": "in the backward pass",
    "loader": "waiting for its data loader",
    "queue": "waiting on a queue",
    "lock": "waiting for a thread of its own",
    "process": "waiting for a child process",
    "socket": "waiting on a socket",
    "pipe": "waiting on a pipe",
    "io": "reading or writing a file",
    "sleep": "sleeping",
    "signal": "waiting for a signal",
    "leaving": "in its exit handlers",
    "python": "running Python",
    "native": "running native code",
    "kernel": "in the kernel, uninterruptible",
    "stopped": "stopped by a signal",
}
FOR_PEERS = ("collective", "transfer", "backward")


def standing(case: Case, rank: RankEvidence) -> str:
    """`waiting in all_reduce #10, train.py:66 in main`; empty where nothing is known."""
    state = case.thread_states.get(rank.rank)
    ended = _end_of(rank)
    if ended:
        return ended
    if state is None:
        return ""
    pending = _pending(case, rank.rank) if state.doing in FOR_PEERS else ""
    words = f"waiting in {pending}" if pending else WORDS.get(state.doing, "running")
    return f"{words}, {locations.short(state.place)}" if state.place else words


def _pending(case: Case, rank: int) -> str:
    calls = case.calls
    mine = calls[(calls["rank"] == rank) & calls["pending"].astype(bool)] if len(calls) else calls
    return "" if mine.empty else f"{mine.iloc[0].op} #{mine.iloc[0].seq}"


def _end_of(rank: RankEvidence) -> str:
    """The end of a rank that nobody else ended."""
    end = rank.end
    if not end.ended_itself:
        return ""
    if rank.exception and end.exit_code != 0:
        return f"raised {rank.exception.type.rpartition('.')[2]}"
    if end.signal:
        return f"ended by {signal_name(end.signal)}"
    return "finished" if not end.exit_code else f"ended with exit code {end.exit_code}"


def ended_at_s(case: Case, rank: RankEvidence) -> float | None:
    """The moment at which it raised what ended it, else that at which it ended; None where somebody else ended it."""
    if not rank.end.ended_itself:
        return None
    raised = (b.t_s for b in breaks(case.cell) if b.rank.rank == rank.rank and b.kind == "exception")
    return next(raised, rank.end.t_s)


def role(verdict: Verdict | None, rank: int) -> str:
    """`guilty`, `blocked`, or nothing."""
    if verdict is None:
        return ""
    return "guilty" if rank in verdict.guilty else "blocked" if rank in verdict.blocked else ""

"""The order in which ranks failed: the first, and those that followed from it."""

from __future__ import annotations

import dataclasses
import functools
import re
import signal
from dataclasses import dataclass
from typing import Literal

from nsadiag.analysis.facts.exceptions import (
    first_of,
    follows_a_peer,
    is_of_a_collective,
    is_of_the_world,
    is_same,
    words,
)
from nsadiag.analysis.ingest.logs import numbered, read_log
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.exceptions import NOT_RAISED, Cause, Raised
from nsadiag.evidence.ring.blackbox import Kind, Phase

# What C++ says before it ends a process for a collective's sake.
GAVE_UP = re.compile(
    r"watchdog.*(timeout|exception)|terminate called.*(gloo|Dist|c10)|connection (closed|reset) by peer",
    re.IGNORECASE,
)
# gloo, on a message of another size; torch itself, where it compares at TORCH_DISTRIBUTED_DEBUG=DETAIL; NCCL over sockets.
MISMATCH = re.compile(
    r"op\.preamble\.length <= op\.nbytes|Received data size doesn't match|Detected mismatch between collectives"
    r"|message truncated : receiv|mismatch in collective sizes|Mismatched collective detected",
    re.IGNORECASE,
)
# torchrun, of a rank that had ended so before it sent a signal to the others: by SIGINT or SIGTERM, or with exit code 1, as
# an interrupted Python does that executed text after its KeyboardInterrupt (seen of Ubuntu's Python 3.12).
SEEN_FIRST = re.compile(r"failed \(exitcode: (?:-2|-15|1)\) local_rank: \d+ \(pid: (\d+)\)")
# Ends are seen by looking again and again: of two so near, either may have been first.
TOGETHER_S = 0.5
HELD_BACK_NS = 60 * 1_000_000_000

How = Literal["killed", "exception", "exited"]


@dataclass(frozen=True, kw_only=True)
class Break:
    """One rank's end, other than at the end of its work."""

    rank: RankEvidence
    kind: How
    t_s: float  # for the order: `rank.end.t_s` is when the end was seen
    follows_a_peer: bool = False

    @property
    def killed_by(self) -> signal.Signals:
        """The signal that ended the rank, where it was killed."""
        return signal.SIGINT if self.rank.is_interrupted else signal.Signals(self.rank.end.signal or 0)


def breaks(cell: CellEvidence) -> list[Break]:
    """All of them, earliest first."""
    # Of the same second, as a launcher's table has it, the SIGTERM that it sends to the others is the later one.
    every = (b for rank in cell.ranks for b in _of_rank(cell, rank))
    found = sorted(every, key=lambda b: (b.t_s, _by_sigterm(b)))
    # Each step judges what the one before it left.
    return _with_a_first_cause(
        cell, _with_first_kill_its_own(cell, _with_own_ends_before_sigterm(cell, found))
    )


def _with_own_ends_before_sigterm(cell: CellEvidence, found: list[Break]) -> list[Break]:
    """A launcher sends SIGTERM to the others as soon as one has failed by itself: who did so at about that time was first."""
    if not found or not _by_sigterm(found[0]):
        return found
    near = [b for b in found if b.t_s - found[0].t_s < TOGETHER_S and _by_itself(cell, b)]
    return near + [b for b in found if b not in near]


def _with_first_kill_its_own(cell: CellEvidence, found: list[Break]) -> list[Break]:
    """Launchers end the ranks that are left by SIGTERM: unless it is the first thing that happened at all."""
    first = found[0] if found else None
    if first and first.kind == "killed" and not (gave_up(cell, first.rank) or first.rank.is_interrupted):
        return _with_first_its_own(found)
    return found


def _with_a_first_cause(cell: CellEvidence, found: list[Break]) -> list[Break]:
    """The breaks with a first cause among them: the death that the launcher saw, else the first whose lost connection may be one to anybody."""
    if all(b.follows_a_peer for b in found) and any(_launcher_saw_first(cell, b) for b in found):
        # A peer hears of a death at once, by its connection; we see it later.
        return [dataclasses.replace(b, follows_a_peer=not _launcher_saw_first(cell, b)) for b in found]
    return _with_first_its_own(found) if found and _is_the_worlds(found) else found


def _with_first_its_own(found: list[Break]) -> list[Break]:
    return [dataclasses.replace(found[0], follows_a_peer=False), *found[1:]]


def _launcher_saw_first(cell: CellEvidence, one: Break) -> bool:
    """Whether somebody else than the launcher ended that rank by a signal, as the launcher itself says."""
    pids = {int(pid) for pid in SEEN_FIRST.findall(cell.launcher_stderr)}
    return one.kind == "killed" and one.rank.meta.pid in pids


def _is_the_worlds(found: list[Break]) -> bool:
    """Whether the first says that a connection was lost which may be one to anybody, and no rank broke when it did."""
    first, others = found[0], found[1:]
    if first.kind != "exception" or not first.follows_a_peer or first.rank.exception is None:
        return False
    near = any(not b.follows_a_peer and b.t_s - first.t_s < TOGETHER_S for b in others)
    return not near and is_of_the_world(first_of(first.rank.exception))


def _by_sigterm(one: Break) -> bool:
    return one.kind == "killed" and one.rank.end.signal == signal.SIGTERM


def _by_itself(cell: CellEvidence, one: Break) -> bool:
    """Ended by a signal that no launcher sends, and not for want of a peer."""
    other = one.kind == "killed" and not _by_sigterm(one)
    return other and (not gave_up(cell, one.rank) or says_mismatch(one.rank))


def says_mismatch(rank: RankEvidence) -> bool:
    """Whether the rank ended because its peer had sent something else than it was waiting for."""
    message = (rank.exception or NOT_RAISED).message
    return bool(words(MISMATCH, message) or words(MISMATCH, rank.stderr_tail))


def _of_rank(cell: CellEvidence, rank: RankEvidence) -> list[Break]:
    end = rank.end
    found = []
    if stated := _stated_by_native_code(cell, rank):
        told = dataclasses.replace(rank, exception=stated)
        return [Break(rank=told, kind="exception", t_s=end.t_s or 0.0)]
    if rank.exception and rank.exception.in_main_thread:
        t_s = (_first_seen_ns(rank, rank.exception) - cell.started_mono_ns) / 1e9
        ending_s = cell.watch.ending_s
        # What a rank says while we end it is no more a break than its death.
        if ending_s is None or t_s < ending_s:
            # What was raised `from None` in its place may not say it.
            hidden = rank.exception.hidden
            follows = follows_a_peer(first_of(rank.exception)) or bool(hidden and follows_a_peer(hidden))
            kind: How = "killed" if rank.is_interrupted else "exception"
            found.append(Break(rank=rank, kind=kind, t_s=t_s, follows_a_peer=follows))
    # Python runs its exit handlers before it ends itself by the SIGINT that it was sent.
    if end.signal and not end.by_us and (not end.clean or end.signal == signal.SIGINT):
        follows = end.signal == signal.SIGTERM or bool(found) or gave_up(cell, rank)
        found.append(Break(rank=rank, kind="killed", t_s=end.t_s or 0.0, follows_a_peer=follows))
    elif end.t_s is not None and not end.by_us and not found and not _died_of_it(rank):
        left_s = _left_s(cell, rank) or end.t_s
        found.append(Break(rank=rank, kind="exited", t_s=left_s, follows_a_peer=_gave_up_a_peer(rank)))
    return found


def _stated_by_native_code(cell: CellEvidence, rank: RankEvidence) -> Raised | None:
    """The error of its own by which C++ ended the process, such as a failed kernel that NCCL's watchdog met first: Python raised nothing."""
    if rank.end.signal != signal.SIGABRT or rank.exception or rank.end.by_us or cell.collected is not None:
        return None
    first = _first_own_error(rank.stderr_tail, rank.rank)
    if first is None:
        return None
    when_ns = cell.started_mono_ns + int((rank.end.t_s or 0.0) * 1e9)
    source = f"{rank.source}/stderr.log"
    return Raised(**vars(first), thread="MainThread", t_mono_ns=when_ns, source=source)


@functools.lru_cache(maxsize=64)
def _first_own_error(stderr: str, rank: int) -> Cause | None:
    """The first stated error of the rank's own in its log; cached, as many rules ask for the breaks."""
    own = (
        raised.exception
        for raised in read_log(numbered(stderr)).raised
        if raised.is_stated and raised.rank in (None, rank)
    )
    return next((e for e in own if not follows_a_peer(e) and not is_of_a_collective(e)), None)


def _left_s(cell: CellEvidence, rank: RankEvidence) -> float | None:
    """The time at which its interpreter ended, as it recorded it: the end of the process is seen up to seconds later."""
    last = rank.recording.events[-1:]
    if not len(last) or (int(last["kind"][0]), int(last["phase"][0])) != (Kind.PROCESS, Phase.END):
        return None
    return (int(last["t_ns"][0]) - cell.started_mono_ns) / 1e9


def _gave_up_a_peer(rank: RankEvidence) -> bool:
    """Whether it ended with an error because a peer was gone: what wraps its work caught that, and said so by its exit."""
    last = next((row for row in reversed(rank.raised) if row.in_main_thread), None)
    told = rank.leaving.ended_with if rank.leaving else None
    return bool(told and last and follows_a_peer(first_of(last)))


def _first_seen_ns(rank: RankEvidence, exception: Raised) -> int:
    """The time at which it was raised, as far as anyone saw: a `finally` may have held it back for long."""
    chain = [exception, first_of(exception)]
    seen = [row.t_mono_ns for row in rank.raised if any(is_same(row, each) for each in chain)]
    # The same words much earlier are another exception, that was swallowed.
    near = [t for t in seen if exception.t_mono_ns - t < HELD_BACK_NS]
    return int(min([*near, exception.t_mono_ns]))


def _died_of_it(rank: RankEvidence) -> bool:
    """Whether the main thread's exception ended it, at whatever time."""
    return bool(rank.exception) and (rank.exception or NOT_RAISED).in_main_thread


def gave_up(cell: CellEvidence, rank: RankEvidence) -> bool:
    """Ended by itself because a collective took too long, or its peer was gone: NCCL's watchdog does that, or gloo in a thread.

    In what others collected the words may be missing: there nothing says that it was anything else.
    """
    if rank.end.signal == signal.SIGABRT and cell.collected is not None:
        return True
    last_words = "\n".join(rank.stderr_tail.splitlines()[-40:])
    return rank.end.signal == signal.SIGABRT and bool(words(GAVE_UP, last_words))


def _is_no_end(cell: CellEvidence, one: Break) -> bool:
    """Whether it did not end well, as far as others' evidence goes: nothing in that shows who was left behind."""
    return cell.collected is None or bool(one.rank.end.exit_code)


def earliest_failure(cell: CellEvidence) -> Break | None:
    """The first rank that raised or was killed, even if only because of a peer: the transport says so of a mismatch too."""
    return next((b for b in breaks(cell) if b.kind != "exited"), None)


def first_break(cell: CellEvidence) -> Break | None:
    """The one that explains the others; None where every rank came to its end, or nothing broke.

    A rank that ended by itself is a break only if others were left behind.
    """
    found = breaks(cell)
    failed = any(b.follows_a_peer or b.kind != "exited" for b in found)
    ended_well = not failed and len(found) == len(cell.ranks)
    stuck = cell.stopped == "hang" or any(b.follows_a_peer for b in found)
    left = (stuck and not ended_well) or cell.collected is not None
    causes = [
        b for b in found if not b.follows_a_peer and (b.kind != "exited" or (left and _is_no_end(cell, b)))
    ]
    # A rank that has exited while another raises its own error only came to its end a little earlier.
    real = [b for b in causes if b.kind != "exited"]
    return next(iter(real or causes), None)


def unordered(cell: CellEvidence, first: Break) -> list[Break]:
    """Other ranks' own exceptions of which nothing tells whether they came before it: in another log, and neither has a time."""
    if cell.collected is None:
        return []
    own = (b for b in breaks(cell) if b.kind == "exception" and not b.follows_a_peer)
    return [b for b in own if b.rank is not first.rank and b.t_s == first.t_s]

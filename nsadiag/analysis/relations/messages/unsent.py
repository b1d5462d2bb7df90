"""Messages that a rank waits for and that were never sent, because the sender ended first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.evidence.blocking import is_transfer
from nsadiag.evidence.phrases import count
from nsadiag.evidence.table import Table


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """One sender and one receiver whose counts differ."""

    sender: int
    receiver: int
    sent: int
    received: int  # receives begun, the one that failed among them
    guilty: int
    why: str
    step: int
    places: dict[int, str]  # of their last transfers with each other


def shortfalls(case: Case) -> Iterator[Shortfall]:
    """By receivers that failed in a transfer, or stand in one, while the sender ended well and had done as many steps."""
    ended = _through(case)
    for rank in case.cell.ranks:
        at = case.thread_states.get(rank.rank)
        stands = is_still(case.cell) and at is not None and at.doing == "transfer"
        if not (stands or failed_in_transfer(rank)):
            continue
        calls = _calls(case)
        received = calls[(calls["rank"] == rank.rank) & (calls.direction == "from")]
        if received.empty or received.iloc[-1].peer is None:
            continue
        sender = int(received.iloc[-1].peer)
        if sender not in ended or _steps(case.cell, sender) < _steps(case.cell, rank.rank):
            continue
        received = received[received.peer == sender]
        sent = calls[(calls["rank"] == sender) & (calls.direction == "to") & (calls.peer == rank.rank)]
        if 0 < len(sent) < len(received):
            yield _shortfall(sender, rank.rank, sent, received)


def _through(case: Case) -> set[int]:
    """Ranks that came to their end; in a still job, also those that stand in taking the process group down."""
    ended = {b.rank.rank for b in breaks(case.cell) if b.kind == "exited" and not b.rank.leaving}
    if not is_still(case.cell):
        return ended
    states = case.thread_states.items()
    return ended | {rank for rank, at in states if at.doing == "leaving" or at.destroys_groups}


def _steps(cell: CellEvidence, rank: int) -> int:
    return int(cell.rank(rank).end.steps or 0)


def failed_in_transfer(rank: RankEvidence) -> bool:
    """Whether what ended it was raised by a send or a receive."""
    frames = first_of(rank.exception).frames if rank.exception else []
    return any(is_transfer(f.function, f.file) for f in frames)


def _calls(case: Case) -> Table:
    """Transfers without the waits for them, in the order in which they began."""
    transfers = case.transfers
    return transfers[~transfers.op.str.endswith(".wait")].sort_values("begin_s")


def _shortfall(sender: int, receiver: int, sent: Table, received: Table) -> Shortfall:
    changed = {rank: _changed_in(frame) for rank, frame in ((sender, sent), (receiver, received))}
    # Whoever did in each step what it had always done is not the one that changed.
    guilty = receiver if changed[receiver] and not changed[sender] else sender
    step, why = int(sent.iloc[-1].step), ""
    if changed[guilty]:
        step, before, after = changed[guilty] or (0, 0, 0)
        why = (
            f"From step {step} on rank {guilty} has {count(after, 'message')} in a step instead of {before}."
        )
    return Shortfall(
        sender=sender, receiver=receiver, sent=len(sent), received=len(received), guilty=guilty, why=why, step=step,
        places={sender: str(sent.iloc[-1].place), receiver: str(received.iloc[-1].place)},
    )  # fmt: skip


def _changed_in(frame: Table) -> tuple[int, int, int] | None:
    """The first step with another number of messages than the one before, and both numbers; the last one may be cut off."""
    counts = [*frame.groupby("step").size().items()][:-1]
    for (_, before), (step, after) in itertools.pairwise(counts):
        if before != after:
            return step, before, after
    return None

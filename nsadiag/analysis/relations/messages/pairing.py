"""Sends and receives in pairs: the nth send from one rank to another with a tag matches the nth receive there."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.thread_state import is_in_transfer
from nsadiag.analysis.relations.call_mismatch import shapes
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table

ROUNDS = 3  # before this one, to know that each has a message


@dataclass(frozen=True, kw_only=True)
class PendingTransfer:
    """The send or receive in which a rank stands."""

    rank: int
    op: str
    group: str
    direction: str
    peer: int | None
    tag: int
    number: int  # which message between the two, with this tag
    step: int
    place: Place | None
    counterpart: str | None  # what the peer has to show for it
    source: str

    @property
    def said(self) -> str:
        word = "sends message" if self.direction == "to" else "waits for message"
        peer = "anyone" if self.peer is None else f"rank {self.peer}"
        return f"{word} {self.number} {self.direction} {peer} (tag {self.tag})"

    @property
    def link(self) -> tuple[int, int] | None:
        """Sender and receiver."""
        if self.peer is None:
            return None
        return (self.rank, self.peer) if self.direction == "to" else (self.peer, self.rank)

    @property
    def alike(self) -> tuple[Any, ...]:
        """Equal for ranks that do the same thing at the same line."""
        return (
            self.direction,
            self.place.file if self.place else None,
            self.place.line if self.place else None,
        )


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A message that does not fit into where it is received."""

    sender: int
    receiver: int
    tag: int
    number: int
    sent: str
    received: str
    guilty: int
    places: dict[int, str]
    is_open: bool  # its receiver is still waiting for it


def calls_of(case: Case) -> Table:
    """Sends and receives without the waits for them, numbered by sender, receiver and tag."""
    rows = case.transfers
    calls = rows[~rows.op.str.endswith(".wait") & rows.peer.notna()]
    triples = [*zip(calls["rank"], calls.peer, calls.direction, strict=True)]
    calls = calls.assign(
        sender=[rank if direction == "to" else peer for rank, peer, direction in triples],
        receiver=[peer if direction == "to" else rank for rank, peer, direction in triples],
    )
    before = calls.groupby(["rank", "sender", "receiver", "tag"]).cumcount()
    return calls.assign(number=[number + 1 for number in before])


def pending_of(case: Case, rank: int) -> PendingTransfer | None:
    """The send or receive in which the rank stands, if its peer never met it."""
    rows = case.transfers
    open_ = rows[(rows["rank"] == rank) & rows.end_s.isna() & rows.peer.notna()]
    if open_.empty or not is_in_transfer(case.cell.rank(rank), case.thread_states.get(rank)):
        return None
    shown = [p for row in open_.to_dict() if (p := _pending(case, rank, row))]
    return next((p for p in shown if p.counterpart), shown[0] if shown else None)


def _pending(case: Case, rank: int, row: dict[Any, Any]) -> PendingTransfer:
    calls = calls_of(case)
    peer, tag = int(row["peer"]), int(row["tag"])
    sender, receiver = (rank, peer) if row["direction"] == "to" else (peer, rank)
    between = calls[(calls.sender == sender) & (calls.receiver == receiver)]
    mine = between[(between["rank"] == rank) & (between.tag == tag) & (between.begin_s <= row["begin_s"])]
    number = int(mine.number.max()) if len(mine) else 1
    theirs = between[between["rank"] == peer]
    return PendingTransfer(
        rank=rank,
        op=str(row["op"]),
        group=str(row["group"]),
        direction=str(row["direction"]),
        peer=peer,
        tag=tag,
        number=number,
        step=int(row["step"]),
        place=locations.of_text(_called_at(calls, rank, row)),
        counterpart=_counterpart(theirs, peer, rank, row["direction"], tag, number),
        source=f"ranks/{rank:05d}/blackbox.bin",
    )


def _called_at(calls: Table, rank: int, row: dict[Any, Any]) -> str:
    """The line of the call whose Work is waited for: that names peer and tag."""
    call = calls[(calls["rank"] == rank) & (calls.call == row["call"]) & (calls.group == row["group"])]
    return str(call.iloc[0].place if len(call) else row["place"])


def _counterpart(theirs: Table, peer: int, rank: int, direction: str, tag: int, number: int) -> str | None:
    """None where the peer did its part."""
    done = "received" if direction == "to" else "sent"
    met = int((theirs.tag == tag).sum())
    if met >= number:
        return None
    others = Counter(int(t) for t in theirs.tag if t != tag)
    tags = (
        "; with other tags " + ", ".join(f"{n} (tag {t})" for t, n in sorted(others.items())[:4])
        if others
        else ""
    )
    return f"rank {peer} {done} {count(met, 'message')} {'from' if direction == 'to' else 'to'} rank {rank} with tag {tag}{tags}"


def left_out(case: Case, pending: PendingTransfer) -> bool:
    """Whether the peer of a pending message has gone on without its part, which it had between any two backwards before."""
    if pending.counterpart is None or pending.peer is None or pending_of(case, pending.peer) is not None:
        return False
    begun = messages_of_peer(case, pending).begin_s.tolist()
    if len(begun) <= ROUNDS:
        return False
    mine = case.events_of(pending.peer, Kind.BACKWARD)
    backwards = mine[mine.phase == Phase.BEGIN].t_s
    between = [int(backwards.between(*both).sum()) for both in itertools.pairwise(begun)]
    return set(between) == {1} and int((backwards > begun[-1]).sum()) > 1


def messages_of_peer(case: Case, pending: PendingTransfer) -> Table:
    """The messages of the peer's that the pending one would have been the next of."""
    calls = calls_of(case)
    mine = calls[(calls["rank"] == pending.peer) & (calls.tag == pending.tag)]
    return mine[[link == pending.link for link in zip(mine.sender, mine.receiver, strict=True)]]


def left_short(case: Case, rank: int) -> bool:
    """Whether the rank has left a line with fewer messages in this step than in every one before."""
    counts = counts_of(case, rank)
    if len(counts.by_step) < 2:
        return False
    # At the line where it stands the rank may not be through; at lines that it has left, it is.
    at = case.thread_states.get(rank)
    here = counts.newest if at is None or at.doing == "transfer" else ""
    return any(0 < counts.now[key] < min(counts.before(key)) for key in counts.now if key[-1] != here)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of one rank's messages, by direction, peer, tag and line."""

    by_step: tuple[Mapping[tuple[Any, ...], int], ...]  # one a step
    newest: str  # the line of the newest message

    @property
    def now(self) -> Mapping[tuple[Any, ...], int]:
        """In the newest step."""
        return self.by_step[-1]

    def before(self, key: tuple[Any, ...]) -> list[int]:
        """In each of the steps before."""
        return [step.get(key, 0) for step in self.by_step[:-1]]


def counts_of(case: Case, rank: int) -> Counts:
    """Numbers of messages from each line (with direction, peer and tag) in each step."""
    calls = calls_of(case)
    mine = calls[calls["rank"] == rank]
    keys = ["direction", "peer", "tag", "place"]
    return Counts(
        by_step=tuple(rows.groupby(keys, sort=False).size() for _, rows in mine.groupby("step")),
        newest=mine.place[-1] if len(mine) else "",
    )


def misfits(case: Case) -> list[Misfit]:
    """The last messages between two ranks whose sizes or types differ, earliest first."""
    calls = calls_of(case)
    found = []
    keys = ["sender", "receiver", "tag", "number"]
    for key, pair in calls.groupby(keys):
        sender, receiver, tag, number = (int(str(part)) for part in key)
        if len(pair) != 2 or pair["rank"].nunique() != 2:
            continue
        sent, received = pair[pair["rank"] == sender].iloc[0], pair[pair["rank"] == receiver].iloc[0]
        if not sent.tensor or not received.tensor or shapes(sent.tensor) == shapes(received.tensor):
            continue
        changed = {r for r in (sender, receiver) if _changed(calls, r, (sender, receiver, tag), number)}
        found.append(
            (
                float(received.begin_s),
                Misfit(
                    sender=sender,
                    receiver=receiver,
                    tag=tag,
                    number=number,
                    sent=sent.tensor,
                    received=received.tensor,
                    guilty=sender if changed == {sender} else receiver,
                    places={sender: sent.place, receiver: received.place},
                    is_open=bool(pair[pair["rank"] == receiver].end_s.isna().any()),
                ),
            )
        )
    return [misfit for _, misfit in sorted(found, key=lambda each: each[0])]


def _changed(calls: Table, rank: int, pair: tuple[int, int, int], number: int) -> bool:
    """Whether the rank's message differs from all those that it exchanged before with this peer."""
    sender, receiver, tag = pair
    mine = calls[
        (calls["rank"] == rank) & (calls.sender == sender) & (calls.receiver == receiver) & (calls.tag == tag)
    ]
    now = mine[mine.number == number].tensor[0]
    before = set(mine[mine.number < number].tensor)
    return bool(before) and now not in before

"""Matching of the calls of a rehearsal: those that belong together, that can be made, and that never can.

Calls of a group are matched in the order in which each of its members makes them, as a backend does; transfers by peer and tag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from nsadiag.evidence.rehearsal.calls import ALL_TO_ALL, ANY_SOURCE, CREATION, RECEIVE, SEND, Call

Key = tuple[str, tuple[int, ...]]  # a group's name and members


@dataclass(frozen=True, kw_only=True)
class Met:
    """Calls that belong together, in the order of the group's members; of a transfer the sender's first."""

    calls: tuple[Call, ...]

    @property
    def ahead_s(self) -> float:
        """By how much all clocks are to be put forward afterwards."""
        return max(call.ahead_s for call in self.calls)


@dataclass
class Matching:
    """The calls that wait for others."""

    queues: dict[Key, dict[int, deque[Call]]] = field(default_factory=dict)
    transfers: list[Call] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    met: int = 0
    # By rank, the calls of each rank that were before its last answer.
    known: dict[int, dict[int, int]] = field(default_factory=dict)

    def known_after(self, met: Met) -> dict[int, int]:
        """The calls of each rank that all members know of from this meeting on."""
        together: dict[int, int] = {}
        for call in met.calls:
            for rank, calls in (*self.known.get(call.rank, {}).items(), (call.rank, call.number)):
                together[rank] = max(together.get(rank, 0), calls)
        for call in met.calls:
            self.known[call.rank] = together
        return together

    def add(self, call: Call) -> Iterator[Met]:
        """All that can be made now that this call is there."""
        if call.is_transfer:
            self.transfers.append(call)
            yield from self._transfers()
            return
        queue = self.queues.setdefault((call.group, call.members), {})
        queue.setdefault(call.rank, deque()).append(call)
        yield from self._meetings((call.group, call.members))

    def _meetings(self, key: Key) -> Iterator[Met]:
        queue = self.queues[key]
        while all(queue.get(rank) for rank in key[1]):
            heads = [queue[rank][0] for rank in key[1]]
            if _differ(heads):
                return
            for rank in key[1]:
                queue[rank].popleft()
            self.met += 1
            yield Met(calls=tuple(heads))

    def _transfers(self) -> Iterator[Met]:
        for sent in [call for call in self.transfers if call.op == SEND]:
            received = next((call for call in self.transfers if _is_for(sent, call)), None)
            if received is None or sent.tensors != received.tensors:
                continue
            self.transfers.remove(sent)
            self.transfers.remove(received)
            self.met += 1
            yield Met(calls=(sent, received))

    def open_calls(self) -> list[Call]:
        """Those that wait, by rank and in the order in which they were made."""
        queued = [call for queue in self.queues.values() for own in queue.values() for call in own]
        return sorted([*queued, *self.transfers], key=lambda call: (call.rank, call.number))

    def difference(self) -> list[Call]:
        """Calls that are each other's counterpart by order, and cannot be matched; empty if there are none."""
        for queue in self.queues.values():
            heads = [own[0] for own in queue.values() if own]
            if len(heads) > 1 and _differ(heads):
                return sorted(heads, key=lambda call: call.rank)
        if creations := self._creations_apart():
            return creations
        for sent in self.transfers:
            received = next((call for call in self.transfers if _is_for(sent, call)), None)
            if received and sent.tensors != received.tensors:
                return [sent, received]
        return []

    def _creations_apart(self) -> list[Call]:
        """Ranks that create a group of the same members under other names: torch numbers those that each of them has made."""
        alone = [
            (key[1], next(iter(present)))
            for key, queue in self.queues.items()
            if len(present := [own[0] for own in queue.values() if own]) == 1 and present[0].op == CREATION
        ]
        for members, call in alone:
            other = next((c for m, c in alone if m == members and c.rank != call.rank), None)
            if other is not None:
                return [call, other]
        return []

    def unanswerable(self) -> list[Call]:
        """Calls that need a rank whose program is over."""
        for key, queue in self.queues.items():
            if any(rank in self.ended and not queue.get(rank) for rank in key[1]):
                waiting = [own[0] for own in queue.values() if own]
                if waiting:
                    return waiting
        return [
            call
            for call in self.transfers
            if call.peer is not None
            and 0 <= call.peer < len(call.members)
            and call.members[call.peer] in self.ended
        ]


def _differ(heads: list[Call]) -> bool:
    if len({call.signature for call in heads}) > 1:
        return True
    return heads[0].op == ALL_TO_ALL and any(
        _part(a.sent, heads, b) != _part(b.received, heads, a) for a in heads for b in heads
    )


def _part(counts: tuple[int, ...], heads: list[Call], of: Call) -> int:
    """The elements that are counted for a member."""
    at = of.members.index(of.rank)
    return counts[at] if at < len(counts) else -1


def _is_for(sent: Call, call: Call) -> bool:
    """Whether the second receives what the first sends."""
    if sent.op != SEND or call.op != RECEIVE or sent.peer is None:
        return False
    same_group = (sent.group, sent.members) == (call.group, call.members)
    from_sender = call.peer in (ANY_SOURCE, sent.members.index(sent.rank))
    addressed = 0 <= sent.peer < len(sent.members) and sent.members[sent.peer] == call.rank
    return same_group and from_sender and addressed and sent.tag == call.tag

"""Iterations of a training loop, counted in what its threads begin: whatever drives it, with an optimizer of torch's or without.

Shared by the agent, which follows a ring, and the analysis, which reads what is left of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.evidence.ring.blackbox import Kind, Phase

# What an iteration is made of; the first of these that recurs counts. A backward is of training, a batch of what is
# driven by data; a rank that does neither calls its model, or nothing but collectives.
ANCHORS = (Kind.BACKWARD, Kind.DATA, Kind.FORWARD, Kind.COLLECTIVE)
# Made of a model that reduces its gradients in its backward: there each backward meets the peers.
WRAPPED = frozenset({Kind.WRAP, Kind.BUCKET, Kind.UNIT})
RECURS = 2


class Iterations:
    """Counts iterations in the events of one rank's working threads, in their order.

    Of what is repeated without anything else in between (layers that are reduced one by one, tokens that are generated)
    a run counts as one. Where ranks meet less often than each of them does a backward or a forward (a line search, local
    steps, rollouts), an iteration reaches from one meeting to the next.
    """

    def __init__(self, *, is_wrapped: bool = False) -> None:
        """`is_wrapped`: its model is known to reduce gradients in its backward; otherwise its events tell."""
        self._runs = dict.fromkeys(ANCHORS, 0)
        self._times = dict.fromkeys(ANCHORS, 0)
        self._last: int | None = None
        self._is_wrapped = is_wrapped

    def take(self, kind: int, phase: int) -> Kind | None:
        """Takes in one event; the anchor of which it begins a run, if it does."""
        if kind in WRAPPED:
            self._is_wrapped = True
        if phase == Phase.END or kind not in self._runs:
            return None
        anchor = Kind(kind)
        self._times[anchor] += 1
        if kind == self._last:
            return None
        self._last = kind
        self._runs[anchor] += 1
        return anchor

    def take_all(self, events: Iterable[tuple[int, int]]) -> None:
        """Takes in (kind, phase) of many."""
        for kind, phase in events:
            self.take(kind, phase)

    @property
    def anchor(self) -> Kind | None:
        """The kind of event with which an iteration begins; None before anything has recurred."""
        recurring = [kind for kind in ANCHORS if self._runs[kind] >= RECURS]
        if not recurring:
            return max(
                (k for k in ANCHORS if self._times[k] >= RECURS), key=self._times.__getitem__, default=None
            )
        own, meets = recurring[0], Kind.COLLECTIVE in recurring
        if meets and not self._is_wrapped and self._runs[Kind.COLLECTIVE] < self._runs[own]:
            return Kind.COLLECTIVE
        return own

    @property
    def count(self) -> int:
        """Iterations that were begun; of a single kind of event, one each."""
        anchor = self.anchor
        if anchor is None:
            return 0
        return self._runs[anchor] if self._runs[anchor] >= RECURS else self._times[anchor]

    @property
    def is_by_runs(self) -> bool:
        """Whether an iteration is a run of its anchor, rather than each of them."""
        anchor = self.anchor
        return anchor is not None and self._runs[anchor] >= RECURS

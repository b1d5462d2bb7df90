"""Timelines of main threads, iteration by iteration, and the first divergence of ranks."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import MAJORITY, NOVEL, SHORTER, Behaviour, Criterion, outliers
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Event

# Ranks of a pipeline rightly differ in these.
TRANSFER = re.compile(r"send|recv|\.wait$|^store\.|^wait_tensor$")
SEEN = (Kind.FORWARD, Kind.BACKWARD, Kind.COLLECTIVE, Kind.DATA, Kind.STEP, Kind.UNIT, Kind.STOP)
COMPARED = (Kind.BACKWARD, Kind.COLLECTIVE, Kind.STEP)
NEED_PLACE = (Kind.FORWARD, Kind.BACKWARD, Kind.COLLECTIVE, Kind.DATA)


@dataclass(frozen=True, kw_only=True)
class TimelineEvent:
    """One thing that the main thread began."""

    kind: int
    name: str
    group: str
    at: str  # file:line:function
    step: int
    t_ns: int
    unsynced: str = ""  # of a forward: the line that asked for no reduction of its gradients
    gave: bool | None = (
        None  # of a question to a loader: whether a batch was the answer; None before there was one
    )

    @property
    def place(self) -> Place | None:
        return locations.of_text(self.at)

    @property
    def key(self) -> tuple[int, str]:
        """The part that has to be equal on ranks that do the same."""
        return self.kind, self.name if self.kind == Kind.UNIT else self.at


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first iteration in which ranks did not do the same."""

    iteration: int  # from 0, of those that all ranks still remember
    guilty: tuple[int, ...]
    others: tuple[int, ...]
    anchor: TimelineEvent  # where the iteration began, on a guilty rank
    common: TimelineEvent  # the last thing that they did alike
    # what the others did next; None: the next iteration, or they are still at it
    theirs: TimelineEvent | None
    own: TimelineEvent | None  # what the guilty did next
    novel: bool  # whether no rank had done before what the guilty ones did


def timeline_of(rank: RankEvidence) -> list[TimelineEvent]:
    """In order; calls of other threads, transfers and the store left out."""
    recording, events = rank.recording, rank.recording.events
    if recording.pid is None:
        return []
    found: list[TimelineEvent] = []
    unsynced = ""
    # Kinds first: most events are gradients and modules, and Python is slow over all of them.
    relevant = events["kind"].isin((*SEEN, Kind.GRAD_SYNC))
    for event in recording.decode(events[relevant & (events["thread"] == recording.pid)]):
        kind, at, begins = event.kind, event.site, event.phase != Phase.END
        if kind == Kind.GRAD_SYNC:
            unsynced = at if event.phase == Phase.BEGIN else ""
        elif kind == Kind.DATA and not begins and found and found[-1].kind == Kind.DATA:
            found[-1] = replace(found[-1], gave=not event.b)
        elif begins and (at or kind not in NEED_PLACE) and not _is_transfer(event):
            found.append(
                TimelineEvent(
                    kind=kind, name=event.name, group=event.group, at=at, step=event.step, t_ns=event.t_ns,
                    unsynced=unsynced if kind == Kind.FORWARD else "",
                )
            )  # fmt: skip
    return found


def _is_transfer(event: Event) -> bool:
    return event.kind == Kind.COLLECTIVE and bool(TRANSFER.search(event.name))


class Timelines:
    """Timelines of all ranks that left a recording."""

    def __init__(
        self, ranks: tuple[RankEvidence, ...], members: Callable[[int, str], frozenset[int]] | None = None
    ) -> None:
        """`members`: of the group that a rank means by a name; without it every call is for all."""
        self._members = members
        self.events = {r.rank: found for r in ranks if (found := timeline_of(r))}
        self._whole = {r.rank: r.recording.is_whole for r in ranks}

    @property
    def are_whole(self) -> bool:
        """Whether all of them reach back to the start."""
        return all(self._whole.get(rank) for rank in self.events)

    @cached_property
    def anchor(self) -> str | None:
        """The line whose forward begins an iteration: the one that backward follows most often, on all ranks together."""
        trained: Counter[str] = Counter()
        for events in self.events.values():
            last = None
            for event in events:
                if event.kind == Kind.FORWARD:
                    last = event.at
                elif event.kind == Kind.BACKWARD and last:
                    trained[last] += 1
                    last = None
        if not trained:
            trained = Counter(t.at for ts in self.events.values() for t in ts if t.kind == Kind.FORWARD)
        return trained.most_common(1)[0][0] if trained else None

    @cached_property
    def iterations_of_all(self) -> dict[int, list[list[TimelineEvent]]]:
        """As `iterations`, with what was done before the first of them."""
        if self.are_whole:
            return {rank: [events] for rank, events in self.events.items()}
        return self.iterations

    @cached_property
    def iterations(self) -> dict[int, list[list[TimelineEvent]]]:
        """By rank, each beginning at the anchor; where rings have wrapped, from the first step that all remember."""
        cut = {rank: _cut(events, self.anchor) for rank, events in self.events.items()}
        if self.are_whole:
            return cut
        # The first one may have lost its beginning.
        first = max((its[1][0].step for its in cut.values() if len(its) > 1), default=0)
        return {rank: [it for it in its if it[0].step > first] for rank, its in cut.items()}

    def count(self, rank: int) -> int:
        """Iterations that the rank began, of those that are comparable."""
        return len(self.iterations.get(rank, ()))

    def was_at(self, rank: int, at: Place) -> int:
        """The number of calls that the rank made from that line."""
        where = f"{at.file}:{at.line}:"
        return sum(t.at.startswith(where) for t in self.events.get(rank, ()))

    def was_at_lately(self, rank: int, at: Place, earlier: int = 0) -> int:
        """The same within the rank's newest iteration, or one that many before; what came before the first counts as one."""
        where = f"{at.file}:{at.line}:"
        events = self.events.get(rank, [])
        began = [n for n, t in enumerate(events) if t.kind == Kind.FORWARD and t.at == self.anchor]
        if len(began) < earlier + (not self._whole.get(rank)):
            return 0
        bounds = [0, *began, len(events)]
        newest = events[bounds[-2 - earlier] : bounds[-1 - earlier]]
        return sum(t.at.startswith(where) for t in newest)

    def last(self, rank: int) -> TimelineEvent | None:
        """The newest thing with a place that the rank began."""
        return next((t for t in reversed(self.events.get(rank, ())) if t.at), None)

    def first_divergence(
        self, ranks: tuple[int, ...], kinds: Collection[Kind] = COMPARED
    ) -> Divergence | None:
        """In events of these kinds, between ranks that should all do the same; None where they did, as far as it is remembered."""
        its = {r: self.iterations.get(r, []) for r in ranks}
        least = min((len(i) for i in its.values()), default=0)
        known: set[tuple[tuple[int, str], ...]] = set()
        for number in range(least):
            shown = self._meant_for_all({r: [t for t in its[r][number] if t.kind in kinds] for r in ranks})
            open_ended = {r for r in ranks if number == len(its[r]) - 1}
            signatures = {r: tuple(t.key for t in shown[r]) for r in ranks}
            if not _agree(signatures, open_ended):
                guilty, novel = suspects(signatures, known, open_ended)
                begun = {r: its[r][number][0] for r in ranks}
                return _divergence(number, begun, shown, guilty, novel)
            known |= set(signatures.values())
        return None

    def _meant_for_all(self, shown: dict[int, list[TimelineEvent]]) -> dict[int, list[TimelineEvent]]:
        """Without calls that the ranks which did not make them had no part in: they are in none of those groups."""
        makers: dict[tuple[int, str], set[int]] = {}
        wanted: dict[tuple[int, str], set[int]] = {}
        for rank, events in shown.items():
            for event in events:
                if self._members is not None and event.kind == Kind.COLLECTIVE:
                    makers.setdefault(event.key, set()).add(rank)
                    wanted.setdefault(event.key, set()).update(self._members(rank, event.group))
        others = {
            key
            for key, made in makers.items()
            if made < shown.keys() and not (wanted[key] & shown.keys()) - made
        }
        return {rank: [t for t in events if t.key not in others] for rank, events in shown.items()}

    def first_unequal_sync(self, ranks: tuple[int, ...]) -> tuple[int, dict[int, TimelineEvent]] | None:
        """The first iteration in which some of the ranks reduce gradients and others do not, and where each began it."""
        trained = {r: self._trained(r) for r in ranks}
        for number in range(min((len(t) for t in trained.values()), default=0)):
            begun = {r: trained[r][number] for r in ranks}
            if len({bool(event.unsynced) for event in begun.values()}) > 1:
                return number, begun
        return None

    def _trained(self, rank: int) -> list[TimelineEvent]:
        """Forwards that a backward followed, from whichever line."""
        found: list[TimelineEvent] = []
        last = None
        for event in (t for iteration in self.iterations_of_all.get(rank, []) for t in iteration):
            if event.kind == Kind.FORWARD:
                last = event
            elif event.kind == Kind.BACKWARD and last is not None:
                found.append(last)
                last = None
        return found

    def iteration(self, rank: int, number: int) -> list[TimelineEvent]:
        """All that the rank did in one iteration, up to where the next begins."""
        its = self.iterations.get(rank, [])
        return its[number] if 0 <= number < len(its) else []


def _divergence(
    number: int,
    begun: Mapping[int, TimelineEvent],
    shown: Mapping[int, list[TimelineEvent]],
    guilty: tuple[int, ...],
    novel: bool,
) -> Divergence | None:
    """`begun`: where each began the iteration; `shown`: what it did in it."""
    others = tuple(sorted(r for r in shown if r not in guilty))
    if not guilty or not others:
        return None
    own, theirs = shown[guilty[0]], shown[others[0]]
    pairs = zip(own, theirs, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0].key == pair[1].key, pairs))
    missed = theirs[same:]
    if not own[same:]:
        # The guilty did none of this: of an optimizer's step, which has no line, the next call tells where it is.
        missed = [t for t in missed if t.place] or missed
    return Divergence(
        iteration=number,
        guilty=guilty,
        others=others,
        anchor=begun[guilty[0]],
        common=own[same - 1] if same else begun[guilty[0]],
        theirs=next(iter(missed), None),
        own=next(iter(own[same:]), None),
        novel=novel,
    )


def _cut(events: list[TimelineEvent], anchor: str | None) -> list[list[TimelineEvent]]:
    found: list[list[TimelineEvent]] = []
    for event in events:
        if event.kind == Kind.FORWARD and event.at == anchor:
            found.append([])
        if found:
            found[-1].append(event)
    return found


def _agree(signatures: dict[int, tuple[tuple[int, str], ...]], open_ended: set[int]) -> bool:
    """Equal; of one that is not over, as far as it goes."""
    longest = max(signatures.values(), key=len)
    return all(
        signature == longest or (rank in open_ended and longest[: len(signature)] == signature)
        for rank, signature in signatures.items()
    )


def suspects(
    signatures: Mapping[int, tuple[Any, ...]],
    known: set[tuple[Any, ...]],
    open_ended: set[int],
) -> tuple[tuple[int, ...], bool]:
    """The minority; without one, whoever did what nobody had done before while the others did as ever.

    `open_ended`: ranks that may not be through; of those the beginning alone counts.
    """
    beginnings = {s[:n] for s in known for n in range(len(s) + 1)}
    doing = {
        rank: Behaviour(now=s, is_novel=s not in (beginnings if rank in open_ended else known))
        for rank, s in signatures.items()
    }
    # Where neither or both are new, the shorter one lacks what the longer waits in.
    found = outliers(doing, (MAJORITY, NOVEL, SHORTER))
    if found.criterion == Criterion.MAJORITY:
        return found.ranks, known.isdisjoint(signatures[rank] for rank in found.ranks)
    return found.ranks if found.decided else (), found.criterion == Criterion.NOVEL

"""One run directory with the tables that rules read, each built at first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeVar

from nsadiag.analysis.facts.collectives import (
    ASKED_COLUMNS,
    CALL_COLUMNS,
    CREATED_COLUMNS,
    TRANSFER_COLUMNS,
    asked_of,
    autograd_threads,
    callers,
    created_of,
    is_reducing,
    recorded_of,
    transfers_of,
)
from nsadiag.analysis.facts.device_queue import cut_off
from nsadiag.analysis.facts.groups import Groups, is_of_a_log, newest_dump, raw_name
from nsadiag.analysis.facts.pace import STEP_COLUMNS, steps_of
from nsadiag.analysis.facts.spans import Span, spans_of
from nsadiag.analysis.facts.thread_state import ThreadState, thread_state_of
from nsadiag.analysis.facts.time_parts import KINDS, PART_COLUMNS, parts_of, steps_and_gradients
from nsadiag.analysis.records import CellEvidence, Collected, RankEvidence
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.spans import CALLS
from nsadiag.evidence.table import Table

T = TypeVar("T")


class Event(NamedTuple):
    """One event of a rank's recording."""

    rank: Annotated[int, "the rank that recorded it"]
    t_s: Annotated[float, "seconds since the job was started"]
    kind: Annotated[int, "its kind, as numbered in nsadiag/evidence/ring/blackbox.py"]
    phase: Annotated[int, "1: begin, 2: end, 3: a moment"]
    name: Annotated[str, "the function, module or parameter"]
    step: Annotated[int, "steps of the optimizer before it"]
    a: Annotated[int, "a number that depends on the kind: of a collective the call's in its group"]
    b: Annotated[int, "another one: of a collective the number of elements"]
    thread: Annotated[int, "the thread"]
    group: Annotated[str, "of a collective the process group, as the rank calls it"]
    site: Annotated[str, "file, line and function"]
    detail: Annotated[str, "what tells one call from another: types and sizes, root, peer, key"]


EVENT_COLUMNS = [*Event._fields]
Rows = Iterable[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """The evidence of one run and what follows from it; everything is computed at first use, since most cases need little."""

    cell: CellEvidence
    _answers: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, question: Callable[[Case], T]) -> T:
        """The answer of a function of the case, computed when it is first asked for."""
        if question not in self._answers:
            self._answers[question] = question(self)
        answer: T = self._answers[question]
        return answer

    @property
    def told(self) -> Collected:
        """The files that others collected, of a case that has some: rules about them are tried on no other."""
        assert self.cell.collected is not None
        return self.cell.collected

    @cached_property
    def events(self) -> Table:
        """The recordings of all ranks: one row an event, seconds since the job was started."""
        found: dict[str, list[Any]] = {name: [] for name in EVENT_COLUMNS}
        for rank in self.cell.ranks:
            for name, values in _events_of(rank, self.cell.started_mono_ns).items():
                found[name] += values
        return Table(found)

    def begun(self, *kinds: int) -> Table:
        """The events of these kinds that began, of all ranks."""
        return self.events[self.events.kind.isin(kinds) & (self.events.phase == Phase.BEGIN)]

    def events_of(self, rank: int, *kinds: int) -> Table:
        """The rank's own events; of these kinds alone where any is given."""
        own = self._events_by_rank.get(rank, self.events[:0])
        return own[own.kind.isin(kinds)] if kinds else own

    @cached_property
    def _events_by_rank(self) -> dict[int, Table]:
        return dict(iter(self.events.groupby("rank")))

    @cached_property
    def calls(self) -> Table:
        """The newest flight-recorder dump of each rank: one row a collective."""
        rows = [row for rank in self.cell.ranks for row in recorded_of(rank, self.groups)]
        return Table.of_rows(rows, CALL_COLUMNS)

    @cached_property
    def groups(self) -> Groups:
        """Process groups by name, with their members (analysis.facts.groups)."""
        return Groups(self.cell)

    @cached_property
    def issued(self) -> dict[str, dict[int, int]]:
        """By group, the highest sequence number of each rank that left a dump; 0 where it issued nothing."""
        ranks = [r.rank for r in self.cell.ranks if newest_dump(r)]
        found = {group: dict.fromkeys(ranks, 0) for group in self.calls.group.unique()}
        for (group, rank), seq in self.calls.groupby(["group", "rank"]).seq.max().items():
            found[group][rank] = seq
        for group, rank, seq in self._issued_by_logs():
            known = found.setdefault(group, dict.fromkeys(ranks, 0))
            known[rank] = max(known[rank], seq)
        return found

    def _issued_by_logs(self) -> Iterator[tuple[str, int, int]]:
        """Group, rank and number of the last call that NCCL's watchdog says was issued: of most such calls a log has no more."""
        for rank in filter(is_of_a_log, self.cell.ranks):
            dump = newest_dump(rank)
            for name, status in dump.get("pg_status", {}).items():
                described = str(dump.get("pg_config", {}).get(name, {}).get("desc") or "")
                label = self.groups.label(rank.rank, raw_name(name, described))
                yield label, rank.rank, int(status["last_enqueued_collective"])

    def last_issued(self, group: str, rank: int) -> int:
        """The rank's highest sequence number in the group."""
        return self.issued[group][rank]

    @cached_property
    def steps(self) -> Table:
        """One row a rank and completed step; `ready_s` is when its last gradient had arrived.

        From there on the rank can only wait for its peers: until then it worked, or waited for the step before.
        """
        found = (
            steps_of(rank, events, self.spans(self.cell.rank(rank), Kind.DATA, Kind.IO))
            for rank, events in self._events_by_rank.items()
        )
        return Table.of_rows([row for rows in found for row in rows], STEP_COLUMNS)

    @cached_property
    def parts(self) -> Table:
        """One row a rank and completed step: where its time went (analysis.facts.time_parts)."""
        reduces = self.cell.world_size > 1
        found = [
            parts_of(
                rank.rank,
                *steps_and_gradients(self.events_of(rank.rank, Kind.STEP, Kind.GRADIENT)),
                spans=self.spans(rank, *KINDS),
                reduces=reduces and bool(rank.ddp or rank.units),
            )
            for rank in self.cell.ranks
        ]
        return Table.of_rows([row for rows in found for row in rows], PART_COLUMNS)

    def spans(self, rank: RankEvidence, *kinds: int) -> list[Span]:
        """The rank's spans of these kinds, in seconds since the start of the job (analysis.facts.spans)."""
        started_ns = self.cell.started_mono_ns
        return spans_of(rank.rank, rank.recording, lambda t_ns: (t_ns - started_ns) / 1e9, *kinds)

    @cached_property
    def call_spans(self) -> dict[int, list[Span]]:
        """By rank, its calls into torch.distributed: collectives, transfers, waits for them, creations of groups."""
        return {rank.rank: self.spans(rank, *CALLS) for rank in self.cell.ranks}

    @cached_property
    def transfers(self) -> Table:
        """Sends, receives, and waits for them, by peer (analysis.facts.collectives)."""

        def rows_of(rank: int, spans: list[Span]) -> Rows:
            return cut_off(self.cell.rank(rank), transfers_of(rank, spans))

        return self._of_calls(rows_of, TRANSFER_COLUMNS)

    @cached_property
    def asked(self) -> Table:
        """Collectives that ranks called from Python, with root and splits, by number (analysis.facts.collectives)."""

        def rows_of(number: int, spans: list[Span]) -> Rows:
            rank = self.cell.rank(number)
            threads = autograd_threads(rank)
            backwards = self.spans(rank, Kind.BACKWARD) if threads else []
            return asked_of(number, spans, self.groups.label, callers(threads, backwards))

        return self._of_calls(rows_of, ASKED_COLUMNS)

    @cached_property
    def created(self) -> Table:
        """Process groups that ranks created, by number (analysis.facts.collectives)."""
        return self._of_calls(created_of, CREATED_COLUMNS)

    @cached_property
    def thread_states(self) -> dict[int, ThreadState]:
        """The thread state of each rank that could be looked at (analysis.facts.thread_state)."""
        found = {rank.rank: thread_state_of(rank) for rank in self.cell.ranks}
        return {rank: state for rank, state in found.items() if state}

    @cached_property
    def reducing(self) -> frozenset[int]:
        """Ranks that wait for a bucket of DDP's to be reduced (analysis.facts.collectives)."""
        return frozenset(
            rank.rank
            for rank in self.cell.ranks
            if rank.ddp
            and is_reducing(
                self.cell, rank, self.events_of(rank.rank), self.calls[self.calls["rank"] == rank.rank]
            )
        )

    def _of_calls(self, rows_of: Callable[[int, list[Span]], Rows], columns: list[str]) -> Table:
        """The table of what a function finds in each rank's own calls."""
        rows = [row for rank, spans in self.call_spans.items() for row in rows_of(rank, spans)]
        return Table.of_rows(rows, columns)


def _events_of(rank: RankEvidence, started_ns: int) -> dict[str, list[Any]]:
    """The columns of its events."""
    events, recording = rank.recording.events, rank.recording
    labels = recording.labels_of(events)
    return {
        "rank": [rank.rank] * len(events),
        "t_s": [(t_ns - started_ns) / 1e9 for t_ns in events["t_ns"]],
        "name": recording.names_of(events),
        **{name: events[name].tolist() for name in ("kind", "phase", "step", "a", "b", "thread")},
        **{name: [getattr(label, name) for label in labels] for name in ("group", "site", "detail")},
    }

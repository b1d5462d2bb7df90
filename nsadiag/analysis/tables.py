"""The tables of a case by name: what rules read, for those who want to look at it themselves."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from nsadiag.analysis.case import Case, Event
from nsadiag.analysis.facts import exits, locations
from nsadiag.analysis.facts.collectives import CollectiveCall, Created, Recorded, Transfer
from nsadiag.analysis.facts.exceptions import first_of
from nsadiag.analysis.facts.groups import newest_dump
from nsadiag.analysis.facts.pace import StepTimes
from nsadiag.analysis.facts.thread_state import ThreadState
from nsadiag.analysis.facts.time_parts import StepParts
from nsadiag.analysis.ingest import masked_exceptions
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations import peer_waits, pending, wait_graph
from nsadiag.analysis.relations.actors.stuck import waits_between
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.documents.kernel import Descriptor
from nsadiag.evidence.records import PeerWait, Place
from nsadiag.evidence.table import Table


class Left(NamedTuple):
    """One rank, and what it left behind."""

    rank: Annotated[int, "the rank"]
    host: Annotated[str | None, "the machine it ran on"]
    events: Annotated[int, "events in its recording"]
    captures: Annotated[int, "snapshots of it"]
    stacks: Annotated[int, "of these, with a Python stack"]
    entries: Annotated[int, "entries in the newest dump of its flight recorder"]
    damaged: Annotated[tuple[str, ...], "documents that are not whole"]
    gaps: Annotated[tuple[str, ...], "what could not be had, and why"]


class Waited(NamedTuple):
    """The time that one rank has kept its peers waiting."""

    rank: Annotated[int, "the rank that its peers waited for"]
    total_s: Annotated[float, "seconds in which at least one of them did"]
    now_s: Annotated[float, "of these, at the end of what was observed; 0 where nobody waits then"]
    longest_s: Annotated[float, "the longest wait that was over"]
    times: Annotated[int, "the number of waits"]
    waiters: Annotated[tuple[int, ...], "ranks that wait now"]
    what: Annotated[str | None, "what they wait in, now"]
    at: Annotated[Place | None, "where the rank is now"]
    source: Annotated[str | None, "the record that shows it"]
    lost_s: Annotated[float, "seconds that all its peers lost together"]
    on_gpus: Annotated[bool, "whether each of them holds a GPU"]


class EndRow(NamedTuple):
    """The end of one rank, as nsadiag saw it from outside."""

    rank: Annotated[int, "the rank"]
    t_s: Annotated[
        float | None,
        "when it was seen, in seconds since the job was started; missing where it was left running",
    ]
    exit_code: Annotated[int | None, "its exit code, if it had one"]
    signal: Annotated[int | None, "the signal that ended it, if one did"]
    by_us: Annotated[bool, "nsadiag ended it, or whoever ended a job that stood still"]
    clean: Annotated[bool, "the interpreter reached its exit handlers"]
    steps: Annotated[int | None, "steps of its optimizer"]


class Broke(NamedTuple):
    """One rank's failure, in their order."""

    rank: Annotated[int, "the rank"]
    kind: Annotated[str, "killed, exception or exited"]
    t_s: Annotated[float, "its time in the order of failures, in seconds since the job was started"]
    follows_a_peer: Annotated[bool, "whether it failed for want of a peer"]


class ExceptionRow(NamedTuple):
    """One exception that a rank raised."""

    rank: Annotated[int, "the rank"]
    ended_it: Annotated[bool, "whether it ended the rank; others were caught"]
    type: Annotated[str, "its type"]
    message: Annotated[str, "its message"]
    cause: Annotated[str, "the type of the first exception of its chain"]
    thread: Annotated[str, "the thread that raised it"]
    t_s: Annotated[float, "when it was raised, in seconds since the job was started"]
    place: Annotated[str, "the innermost line of user code"]


class GroupRow(NamedTuple):
    """One process group."""

    group: Annotated[str, "its label, which tells groups of one name apart by their members"]
    members: Annotated[tuple[int, ...], "its ranks"]


@dataclass(frozen=True, kw_only=True)
class FactTable:
    """One table: its rows, of a type whose fields say what they mean, and the columns that hold ranks."""

    says: str
    row: type
    rows: Callable[[Case], Iterable[Any]]
    ranks: tuple[str, ...] = ("rank",)

    @property
    def columns(self) -> Mapping[str, str]:
        """By name, what each column means."""
        hints = typing.get_type_hints(self.row, include_extras=True)
        return {n: hint.__metadata__[0] for n, hint in hints.items() if typing.get_origin(hint) is Annotated}

    def of(self, case: Case) -> Table:
        """The table of a case."""
        names = [*self.columns]
        rows = self.rows(case)
        if isinstance(rows, Table):
            return rows[names]
        return Table.of_rows([[getattr(row, name) for name in names] for row in rows], names)


def case_of(*paths: Path) -> Case:
    """The case of a run directory, or of what other tools left. Raises UsageError where none of it is evidence."""
    return case_in(load_cell(*paths))


def case_in(cell: CellEvidence) -> Case:
    """The case of evidence that has been read."""
    return Case(masked_exceptions.marked(cell))


def _left(case: Case) -> Iterator[Left]:
    for rank in case.cell.ranks:
        yield Left(
            rank=rank.rank,
            host=rank.recording.header.host if rank.recording.header else None,
            events=len(rank.recording.events),
            captures=len(rank.captures),
            stacks=sum(bool(capture.stacks) for capture in rank.captures),
            entries=len(newest_dump(rank).get("entries", [])),
            damaged=rank.damaged,
            gaps=rank.gaps,
        )


def _ended(case: Case) -> Iterator[EndRow]:
    for rank in case.cell.ranks:
        yield EndRow(rank.rank, *(getattr(rank.end, name) for name in EndRow._fields[1:]))


def _broke(case: Case) -> Iterator[Broke]:
    for each in exits.breaks(case.cell):
        yield Broke(each.rank.rank, each.kind, each.t_s, each.follows_a_peer)


def _raised(case: Case) -> Iterator[ExceptionRow]:
    for rank in case.cell.ranks:
        for each in (*rank.raised, *([rank.exception] if rank.exception else [])):
            yield _exception(case, rank, each)


def _exception(case: Case, rank: RankEvidence, raised: Raised) -> ExceptionRow:
    place = locations.of_exception(raised)
    return ExceptionRow(
        rank=rank.rank,
        ended_it=raised is rank.exception,
        type=raised.type,
        message=raised.message,
        cause=first_of(raised).type,
        thread=raised.thread,
        t_s=(raised.t_mono_ns - case.cell.started_mono_ns) / 1e9,
        place=locations.short(place) if place else "",
    )


def _groups(case: Case) -> Iterator[GroupRow]:
    labels = [*case.groups.labels, *case.calls.group.unique(), *case.asked.group.unique()]
    for label in dict.fromkeys(labels):
        yield GroupRow(label, tuple(sorted(case.groups.members(label))))


def _states(case: Case) -> Iterable[ThreadState]:
    return case.thread_states.values()


def _edges(case: Case) -> Iterable[wait_graph.Edge]:
    return case.once(waits_between)


def _peer_waits(case: Case) -> Iterable[PeerWait]:
    return case.once(peer_waits.peer_waits).ranked()


TABLES: dict[str, FactTable] = {
    "ranks": FactTable(says="what each rank left behind", row=Left, rows=_left),
    "events": FactTable(says="the recordings of all ranks", row=Event, rows=lambda case: case.events),
    "steps": FactTable(says="the steps of all ranks, in parts", row=StepTimes, rows=lambda case: case.steps),
    "parts": FactTable(says="where the time of each step went", row=StepParts, rows=lambda case: case.parts),
    "asked": FactTable(says="collectives that ranks called from Python", row=CollectiveCall, rows=lambda case: case.asked),
    "created": FactTable(says="process groups that ranks created", row=Created, rows=lambda case: case.created),
    "transfers": FactTable(
        says="sends, receives, and waits for them, by peer", row=Transfer, rows=lambda case: case.transfers
    ),
    "calls": FactTable(
        says="collectives in the newest dump of each rank's flight recorder", row=Recorded, rows=lambda case: case.calls
    ),
    "groups": FactTable(says="process groups and their members", row=GroupRow, rows=_groups, ranks=("members",)),
    "pending": FactTable(
        says="by group, the earliest collective in which a rank is stuck",
        row=pending.PendingCall,
        rows=pending.waits,
        ranks=("waiting", "missing", "unseen"),
    ),
    "thread_states": FactTable(
        says="what each rank's main thread did at the last snapshot", row=ThreadState, rows=_states
    ),
    "waits_for": FactTable(
        says="the wait-for graph of ranks, or of processes and actors, one row an edge",
        row=wait_graph.Edge,
        rows=_edges,
        ranks=("waiter", "waited_for"),
    ),
    "peer_waits": FactTable(says="how long peers waited for each rank", row=Waited, rows=_peer_waits),
    "ends": FactTable(says="how each rank ended", row=EndRow, rows=_ended),
    "breaks": FactTable(says="failures, the first one first", row=Broke, rows=_broke),
    "exceptions": FactTable(says="exceptions that ranks raised", row=ExceptionRow, rows=_raised),
}  # fmt: skip


def of_ranks(table: Table, columns: Iterable[str], ranks: Iterable[int]) -> Table:
    """The rows that have one of these ranks in one of the columns."""
    wanted = {*ranks}
    columns = [*columns]
    keep = [any(wanted & _ranks_in(row[name]) for name in columns) for row in table]
    return table[keep] if keep else table


def _ranks_in(value: Any) -> set[int]:
    return {*value} if isinstance(value, Iterable) else {value}


def plain(value: Any) -> Any:
    """A value for JSON, CSV and people: numbers, texts, and lists of them."""
    if isinstance(value, Place):
        return locations.short(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Descriptor):
        return value.path or f"{value.kind} {value.local} {value.peer}".rstrip()
    return str(value)

"""Pending collectives of all ranks, matched by group and sequence number, and the group in which somebody waits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.facts.groups import Members
from nsadiag.analysis.ingest.dumps.columns import OWN_SIZES
from nsadiag.analysis.outliers import MAJORITY, NOVEL, Behaviour, outliers
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.records import Collective, Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Row, Table


class Course(Protocol):
    """One rank's collectives in one group."""

    @property
    def last(self) -> int:
        """The highest number that it issued."""

    @property
    def open_seqs(self) -> Sequence[int]:
        """Numbers that are not complete, in order."""

    @property
    def has_started(self) -> bool:
        """Whether its device has begun the first of these."""


@dataclass(frozen=True, kw_only=True)
class Pending:
    """The first collective of a group that a rank is blocked in, and where each member of the group stands."""

    group: Annotated[str, "the process group, by its label"]
    seq: Annotated[int, "the sequence number"]
    waiting: Annotated[tuple[int, ...], "members that issued it, and in which it is not complete"]
    started: Annotated[tuple[int, ...], "of those, the ones whose device has begun it"]
    completed: Annotated[tuple[int, ...], "members that issued it, and in which it is complete"]
    missing: Annotated[tuple[int, ...], "members that never issued it"]
    outliers: Annotated[
        tuple[int, ...],
        "members that issued something else under its number than most; all where nothing decides",
    ]
    unseen: Annotated[tuple[int, ...], "members without a dump"]

    @property
    def late(self) -> tuple[int, ...]:
        """Issued it, and their device has not come to it, while others' has."""
        return tuple(sorted({*self.waiting} - {*self.started})) if self.started else ()

    @property
    def deviating(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        return tuple(sorted({*self.missing, *self.outliers})) or self.late

    @property
    def conforming(self) -> tuple[int, ...]:
        """Those who wait."""
        return tuple(sorted({*self.waiting} - {*self.deviating}))

    @property
    def is_on_some_devices(self) -> bool:
        """Whether it is complete on some members and on others not, though all issued the same."""
        return bool(self.completed) and not (self.missing or self.outliers)


def pending_in(
    group: str,
    courses: Mapping[int, Course],
    members: Iterable[int],
    seen: Container[int],
    asked: Callable[[int], Mapping[int, Behaviour]],
) -> Pending | None:
    """Match the ranks' courses in a group by number; counts decide, since states lie. None where nobody waits in it.

    `seen`: ranks that left a dump; `asked`: what each issued under a number.
    """
    seq = min((c.open_seqs[0] for c in courses.values() if c.open_seqs), default=None)
    if seq is None:
        return None
    waiting = {r: c for r, c in courses.items() if c.open_seqs and c.open_seqs[0] <= seq <= c.last}
    found, behaviour = sorted({*members}), asked(seq)
    disagree = len({each.now for each in behaviour.values()}) > 1
    return Pending(
        group=group,
        seq=seq,
        waiting=tuple(sorted(waiting)),
        started=tuple(sorted(r for r, c in waiting.items() if c.has_started)),
        completed=tuple(sorted(r for r, c in courses.items() if c.last >= seq and r not in waiting)),
        # A member whose dump has nothing of this group never issued anything in it, or long ago.
        missing=tuple(r for r in found if r in seen and (r not in courses or courses[r].last < seq)),
        outliers=outliers(behaviour, (MAJORITY, NOVEL)).ranks if disagree else (),
        unseen=tuple(r for r in found if r not in seen),
    )


BARRIER_NOTE = " (one element, as of a barrier)"


def is_barrier(call: Row) -> bool:
    """Whether a recorded call may be what dist.barrier() asks of NCCL; a flag that ranks agree on looks the same."""
    return "all_reduce" in str(call.op) and call.input_sizes == [[1]]


@dataclass(frozen=True, kw_only=True)
class PendingCall(Pending):
    """The same with the ranks' own records of it."""

    calls: Table  # rows of Case.calls with this group and sequence

    def call_of(self, rank: int) -> Row:
        """The rank's own call of it."""
        found: Row = self.calls[self.calls["rank"] == rank].iloc[-1]
        return found

    def at_odds_with(self, rank: int) -> tuple[int, ...]:
        """Members whose record under its number is of a call that does not match the rank's."""
        asked = {row["rank"]: _said(row) for row in self.calls.to_dict()}
        return tuple(sorted(other for other, said in asked.items() if said != asked[rank]))

    def collective(self, rank: int) -> Collective:
        """The collective that the rank called."""
        row = self.call_of(rank)
        return Collective(
            op=row.op, group=self.group, seq=self.seq, sizes=row.input_sizes, dtypes=row.input_dtypes
        )

    def issued_at(self, cell: CellEvidence, rank: int) -> Place | None:
        """The user line that issued it."""
        call = self.call_of(rank)
        return call.place or locations.of_call(cell.rank(rank), int(call.wall_ns))

    @property
    def barrier_note(self) -> str:
        """A remark behind its name: NCCL's barrier is an all_reduce of one element."""
        return BARRIER_NOTE if self.waiting and is_barrier(self.call_of(self.waiting[0])) else ""

    def source(self, cell: CellEvidence, rank: int) -> str:
        """The file and entry that show it."""
        capture = next(c for c in reversed(cell.rank(rank).captures) if c.flight_recorder)
        return f"{capture.source}/fr.json#entries[{self.call_of(rank).position}]"


def is_still(cell: CellEvidence) -> bool:
    """Whether the last snapshot found that nothing moved any more, and the job did not end by itself after it.

    Evidence of other tools has no such snapshot: its reader says whether somebody waits in it, and nothing shows that it moved.
    """
    if cell.collected is not None:
        return cell.collected.is_stuck
    looks = cell.watch.looks
    went_on = cell.stopped is None and cell.watch.launcher_exit_code is not None
    return bool(looks) and looks[-1].judgement == "still" and not went_on


def was_given_up(cell: CellEvidence) -> bool:
    """Whether it was ended in a silence that was looked at: by --timeout, or by a person who had waited long enough."""
    looks, moved_s = cell.watch.looks, cell.watch.last_progress_s
    if cell.stopped != "interrupt" or not looks or moved_s is None:
        return cell.stopped == "timeout"
    return looks[-1].t_s > moved_s


def ran_well(cell: CellEvidence) -> bool:
    """Whether neither a hang nor an exception ended it."""
    return cell.stopped != "hang" and not any(rank.exception for rank in cell.ranks)


def ran_together(cell: CellEvidence) -> bool:
    """Whether several ranks ran, none of them unseen, and neither a hang nor an exception ended it."""
    return cell.world_size > 1 and not cell.absent and ran_well(cell)


def is_suspended(cell: CellEvidence) -> bool:
    """Whether the last snapshot found every rank stopped by a signal: what suspends a whole job is outside it."""
    last = cell.watch.last_look
    return last is not None and bool(last.motions) and all(motion.stopped for motion in last.motions)


@dataclass(frozen=True, kw_only=True)
class _Issued:
    """A course, as the rows of a rank's dump show it."""

    last: int
    open_seqs: tuple[int, ...]
    has_started: bool


def waits(case: Case) -> list[PendingCall]:
    """One for each group in which anyone waits."""
    return case.once(_waits)


def _waits(case: Case) -> list[PendingCall]:
    calls = case.calls
    found = []
    for group in sorted({*calls[calls.pending.astype(bool)].group}):
        rows = calls[calls.group == group]
        # Where nobody says who is in the group, whoever never used it may not be.
        members = case.groups.members(group) if case.groups.is_known(group) else {*rows["rank"]}
        issued = {rank: seq for rank, seq in case.issued.get(group, {}).items() if rank in members}
        courses = {rank: _course(own, issued.get(rank, 0)) for rank, own in rows.groupby("rank")}
        asked = functools.partial(_asked, case, rows)
        if one := pending_in(group, courses, members, issued, asked):
            same = rows[rows.seq == one.seq]
            found.append(PendingCall(**vars(one), calls=same))
    return found


def _course(rows: Table, last: int) -> _Issued:
    open_ = rows[rows.pending.astype(bool)].sort_values("seq")
    return _Issued(
        last=max(last, int(rows.seq.max())),
        open_seqs=tuple(open_.seq),
        has_started=len(open_) > 0 and bool(open_.iloc[0].started),
    )


def _asked(case: Case, rows: Table, seq: int) -> dict[int, Behaviour]:
    """Calls of ranks under that number of a group: the operation, with what all of them must pass alike."""
    said = {int(row["rank"]): _said(row) for row in rows[rows.seq == seq].to_dict()}
    return {rank: Behaviour(now=each, weight=case.cell.weight(rank)) for rank, each in said.items()}


def _said(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The operation that a row records, with what all ranks must pass alike."""
    alike = [] if OWN_SIZES.search(row["op"]) else [str(row["input_sizes"]), str(row["input_dtypes"])]
    return row["op"], *alike


def waiting_group(case: Case) -> Members:
    """Members of the group in which somebody waits for a peer, or waited until that peer's end ended it.

    Of several such groups the smallest; all ranks where nothing says who is needed. A member without evidence is left out.
    """
    sets = [*_in_dumps(case)] if is_still(case.cell) else [*_left_behind(case)]
    everyone = frozenset(rank.rank for rank in case.cell.ranks)
    return everyone & min((each for each in sets if len(each) > 1), key=len, default=everyone)


def _in_dumps(case: Case) -> Iterator[Members]:
    for wait in waits(case):
        yield frozenset({*wait.waiting, *wait.missing, *(int(rank) for rank in wait.calls["rank"])})


def _left_behind(case: Case) -> Iterator[Members]:
    """The groups of what ranks were in last that failed for want of a peer."""
    for one in breaks(case.cell):
        if one.follows_a_peer and (members := _needed_by(case, one.rank)):
            yield members


def _needed_by(case: Case, rank: RankEvidence) -> Members | None:
    events = case.events_of(rank.rank, Kind.COLLECTIVE, Kind.BACKWARD)
    began = events[events.phase == Phase.BEGIN]
    if began.empty:
        return None
    last = began.iloc[-1]
    if last.kind == Kind.BACKWARD:
        # What reduces gradients there is DDP, on the group of the model.
        groups = {frozenset(model.ranks) for model in rank.ddp}
        return groups.pop() if len(groups) == 1 else None
    label = case.groups.label(rank.rank, last.group)
    return case.groups.members(label) if case.groups.is_known(label) else None

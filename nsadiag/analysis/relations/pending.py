"""Pending collectives of all ranks, matched by group and sequence number, and the group in which somebody waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.facts.groups import Members
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.records import Collective, Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Row, Table


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The earliest collective of a group that some rank is stuck in."""

    group: Annotated[str, "the process group, by its label"]
    seq: Annotated[int, "the sequence number"]
    waiting: Annotated[tuple[int, ...], "members that issued it, and in which it is not over"]
    missing: Annotated[tuple[int, ...], "members that never issued it"]
    unseen: Annotated[tuple[int, ...], "members without a dump"]
    calls: Table  # rows of Case.calls with this group and sequence

    def call_of(self, rank: int) -> Row:
        """The rank's own call of it."""
        found: Row = self.calls[self.calls["rank"] == rank].iloc[-1]
        return found

    def collective(self, rank: int) -> Collective:
        """The collective that the rank called."""
        row = self.call_of(rank)
        return Collective(
            op=row.op, group=self.group, seq=self.seq, sizes=row.input_sizes, dtypes=row.input_dtypes
        )

    def issued_at(self, cell: CellEvidence, rank: int) -> Place | None:
        """The user line that issued it."""
        return locations.of_call(cell.rank(rank), int(self.call_of(rank).wall_ns))

    def source(self, cell: CellEvidence, rank: int) -> str:
        """The file and entry that show it."""
        capture = next(c for c in reversed(cell.rank(rank).captures) if c.flight_recorder)
        return f"{capture.source}/fr.json#entries[{self.call_of(rank).position}]"


def is_still(cell: CellEvidence) -> bool:
    """Whether the last snapshot found that nothing moved any more, and the job did not end by itself after it."""
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


def waits(case: Case) -> list[Wait]:
    """One for each group in which anyone waits; counts decide, since states lie."""
    calls = case.calls
    found = []
    for group, pending in calls[calls.pending.astype(bool)].groupby("group"):
        seq = int(pending.seq.min())
        # Where nobody says who is in the group, whoever never used it may not be.
        of_all = case.groups.is_known(str(group))
        members = set(case.groups.members(str(group)) if of_all else calls[calls.group == group]["rank"])
        issued = case.issued.get(str(group), {})
        seen = members & set(issued)
        missing = tuple(sorted(r for r in seen if issued[r] < seq))
        waiting = tuple(sorted(int(r) for r in pending.loc[pending.seq == seq, "rank"].unique()))
        same = calls[(calls.group == group) & (calls.seq == seq)]
        found.append(
            Wait(
                group=str(group),
                seq=seq,
                waiting=waiting,
                missing=missing,
                unseen=tuple(sorted(members - seen)),
                calls=same,
            )
        )
    return found


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

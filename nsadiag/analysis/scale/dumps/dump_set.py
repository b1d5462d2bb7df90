"""The dumps of all ranks side by side: pending collectives, missing ranks, and ranks that issued something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from nsadiag.analysis.ingest.dumps.columns import STARTED, Group, GroupColumn, RankColumns
from nsadiag.analysis.outliers import MAJORITY, NOVEL, Behaviour, outliers


@dataclass(frozen=True, kw_only=True)
class PendingCollective:
    """The first collective of a group that some rank is stuck in, and how each rank of the group stands to it."""

    group: Group
    seq: int
    waiting: tuple[int, ...]  # issued it, and it is not over
    started: tuple[int, ...]  # of those, the ones whose GPU has begun it
    completed: tuple[int, ...]  # issued it, and it is over
    missing: tuple[int, ...]  # have a dump, and never issued it
    outliers: tuple[int, ...]  # issued something else under its number than most
    unseen: tuple[int, ...]  # left no dump

    @property
    def late(self) -> tuple[int, ...]:
        """Issued it, and their GPU has not come to it, while others' has."""
        return tuple(sorted({*self.waiting} - {*self.started})) if self.started else ()

    @property
    def deviating(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        return tuple(sorted({*self.missing, *self.outliers})) or self.late

    @property
    def conforming(self) -> tuple[int, ...]:
        """Those who wait."""
        return tuple(sorted({*self.waiting} - {*self.deviating}))


@dataclass(frozen=True, kw_only=True)
class DumpSet:
    """Every dump there is."""

    ranks: dict[int, RankColumns]

    @cached_property
    def groups(self) -> dict[Group, dict[int, GroupColumn]]:
        """By group and rank."""
        found: dict[Group, dict[int, GroupColumn]] = {}
        for rank in sorted(self.ranks):
            for column in self.ranks[rank].groups:
                found.setdefault(column.group, {})[rank] = column
        return found

    @cached_property
    def world_size(self) -> int:
        """As the largest group says, or the highest rank."""
        members = max((group.members[-1] + 1 for group in self.groups if group.members), default=0)
        return max(members, max(self.ranks, default=-1) + 1)

    @cached_property
    def unseen(self) -> tuple[int, ...]:
        """Ranks without a dump."""
        return tuple(r for r in range(self.world_size) if r not in self.ranks)

    @cached_property
    def all_pending(self) -> tuple[PendingCollective, ...]:
        """One for each group in which anyone waits, the one that explains most first."""
        found = [m for group, columns in self.groups.items() if (m := self._pending_in(group, columns))]
        return tuple(sorted(found, key=self._order))

    def _order(self, pending: PendingCollective) -> tuple[bool, bool, int, int, str]:
        """Whoever is waited for, and waits for nobody, comes first; then the collective that GPUs are in."""
        held_up = self.held_up_elsewhere(pending)
        free = [r for r in pending.deviating if r not in held_up]
        alike = not (pending.missing or pending.outliers)
        return alike, not free, -len(pending.started), -len(pending.waiting), pending.group.key

    def held_up_elsewhere(self, pending: PendingCollective) -> set[int]:
        """The ranks waited for in it that wait themselves, in another group."""
        return {
            rank
            for rank in pending.missing
            if any(g != pending.group.key for g in self._waits_in.get(rank, ()))
        }

    def idle(self, rank: int) -> bool:
        """Whether all that it enqueued is over: what its peers wait for, its host has not issued."""
        own = self.ranks[rank]
        return not own.open_transfers and not any(column.open_seqs for column in own.groups)

    def missing_elsewhere(
        self, pending: PendingCollective
    ) -> tuple[tuple[PendingCollective, tuple[int, ...]], ...]:
        """Other culprits, by the first group that waits for each: ranks with nothing open, that are missing in other groups."""
        named = {*pending.missing}
        found = []
        for other in self.all_pending:
            fresh = tuple(r for r in other.missing if r not in named and self.idle(r))
            if fresh:
                named.update(fresh)
                found.append((other, fresh))
        return tuple(found)

    @cached_property
    def behind(self) -> tuple[PendingCollective, ...]:
        """Collectives on the completion frontier of their group that are over for some members and for others not.

        The frontier is the lowest number that some member has not completed. Whoever has completed it needed all members
        for it: those that have not are stuck on their own device.
        """
        return tuple(m for m in self.all_pending if m.completed and not (m.missing or m.outliers))

    @cached_property
    def _waits_in(self) -> dict[int, set[str]]:
        """Groups by rank in which it waits for a peer that never came, or asked for something else."""
        found: dict[int, set[str]] = {}
        for group, columns in self.groups.items():
            pending = self._pending_in(group, columns)
            for rank in pending.waiting if pending and (pending.missing or pending.outliers) else ():
                found.setdefault(rank, set()).add(group.key)
        return found

    def _pending_in(self, group: Group, columns: Mapping[int, GroupColumn]) -> PendingCollective | None:
        seq = min((c.open_seqs[0] for c in columns.values() if c.open_seqs), default=None)
        if seq is None:
            return None
        waiting = {r: c for r, c in columns.items() if c.open_seqs and c.open_seqs[0] <= seq <= c.last}
        members = group.members or tuple(range(self.world_size))
        return PendingCollective(
            group=group,
            seq=seq,
            waiting=tuple(waiting),
            completed=tuple(r for r, c in columns.items() if c.last >= seq and r not in waiting),
            started=tuple(r for r, c in waiting.items() if c.open_states[0] == STARTED),
            # A member whose dump has nothing of this group never issued anything in it, or long ago.
            missing=tuple(
                r for r in members if r in self.ranks and (r not in columns or columns[r].last < seq)
            ),
            outliers=_outliers(columns, seq),
            unseen=tuple(r for r in members if r not in self.ranks),
        )


def _asked(columns: Mapping[int, GroupColumn], seq: int) -> dict[int, int]:
    return {rank: code for rank, column in columns.items() if (code := column.code(seq))}


def _outliers(columns: Mapping[int, GroupColumn], seq: int) -> tuple[int, ...]:
    """Ranks that asked for something else than the rest; all that asked where nothing decides."""
    asked = _asked(columns, seq)
    if len(set(asked.values())) < 2:
        return ()
    doing = {r: Behaviour(now=code, is_novel=columns[r].is_new(seq)) for r, code in asked.items()}
    return outliers(doing, (MAJORITY, NOVEL)).ranks


def merged(columns: Iterable[RankColumns]) -> DumpSet:
    """Whatever the order in which they come; of two dumps of one rank, the one that got further."""
    ranks: dict[int, RankColumns] = {}
    groups: dict[str, Group] = {}
    for each in columns:
        for column in each.groups:
            if column.group.members or column.group.key not in groups:
                groups[column.group.key] = column.group
        held = ranks.get(each.rank)
        if held is None or _reach(each) > _reach(held):
            ranks[each.rank] = each
    return DumpSet(ranks={rank: _named(ranks[rank], groups) for rank in sorted(ranks)})


def _reach(columns: RankColumns) -> tuple[int, str]:
    return sum(column.last for column in columns.groups), columns.file


def _named(columns: RankColumns, groups: dict[str, Group]) -> RankColumns:
    return replace(columns, groups=tuple(replace(c, group=groups[c.group.key]) for c in columns.groups))

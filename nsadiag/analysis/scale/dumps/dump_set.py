"""The dumps of all ranks side by side: pending collectives, missing ranks, and ranks that issued something else."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from nsadiag.analysis.ingest.dumps.columns import Group, GroupColumn, RankColumns
from nsadiag.analysis.outliers import Behaviour
from nsadiag.analysis.relations.pending import Pending, pending_in


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
    def all_pending(self) -> tuple[Pending, ...]:
        """One for each group in which anyone waits, the one that explains most first."""
        return tuple(sorted(self._matched, key=self._order))

    @cached_property
    def _matched(self) -> list[Pending]:
        found = (self._pending_in(group, columns) for group, columns in self.groups.items())
        return [each for each in found if each]

    def _order(self, pending: Pending) -> tuple[bool, bool, int, int, str]:
        """Whoever is waited for, and waits for nobody, comes first; then the collective that GPUs are in."""
        held_up = self.held_up_elsewhere(pending)
        free = [r for r in pending.deviating if r not in held_up]
        alike = not (pending.missing or pending.outliers)
        return alike, not free, -len(pending.started), -len(pending.waiting), pending.group

    def held_up_elsewhere(self, pending: Pending) -> set[int]:
        """The ranks waited for in it that wait themselves, in another group."""
        return {
            rank for rank in pending.missing if any(g != pending.group for g in self._waits_in.get(rank, ()))
        }

    def idle(self, rank: int) -> bool:
        """Whether all that it enqueued is over: what its peers wait for, its host has not issued."""
        own = self.ranks[rank]
        return not own.open_transfers and not any(column.open_seqs for column in own.groups)

    def missing_elsewhere(self, pending: Pending) -> tuple[tuple[Pending, tuple[int, ...]], ...]:
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
    def behind(self) -> tuple[Pending, ...]:
        """Collectives on the completion frontier of their group that are over for some members and for others not.

        The frontier is the lowest number that some member has not completed. Whoever has completed it needed all members
        for it: those that have not are stuck on their own device.
        """
        return tuple(m for m in self.all_pending if m.is_on_some_devices)

    @cached_property
    def _waits_in(self) -> dict[int, set[str]]:
        """Groups by rank in which it waits for a peer that never came, or asked for something else."""
        found: dict[int, set[str]] = {}
        for pending in self._matched:
            for rank in pending.waiting if pending.missing or pending.outliers else ():
                found.setdefault(rank, set()).add(pending.group)
        return found

    def _pending_in(self, group: Group, columns: Mapping[int, GroupColumn]) -> Pending | None:
        members = group.members or tuple(range(self.world_size))
        asked = functools.partial(_asked, columns)
        return pending_in(group.key, columns, members, self.ranks, asked)


def _asked(columns: Mapping[int, GroupColumn], seq: int) -> dict[int, Behaviour]:
    said = {rank: code for rank, column in columns.items() if (code := column.code(seq))}
    if len({*said.values()}) < 2:
        return {}
    return {r: Behaviour(now=code, is_novel=columns[r].is_new(seq)) for r, code in said.items()}


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

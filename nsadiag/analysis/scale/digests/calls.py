"""Calls that a rank issued in each of its groups, as the columns in which flight-recorder dumps of many ranks are compared."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from nsadiag.analysis.facts.groups import newest_dump
from nsadiag.analysis.ingest.dumps.columns import Categories, Group, GroupColumn, GroupNames, RankColumns
from nsadiag.analysis.ingest.dumps.plain import plain_columns
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.scale.digests.shape import Members
from nsadiag.evidence.recorder import Dump, GroupConfig

# Of each group's newest collectives travel checksums: further back ranks that meet have asked for the same.
NEWEST = 64


@dataclass
class Issued:
    """Collects the columns of a node's ranks; groups are told once."""

    groups: dict[str, Members] = field(default_factory=dict)
    _names: GroupNames = field(default_factory=GroupNames)
    _categories: Categories = field(default_factory=Categories)

    def row(self, rank: RankEvidence) -> Any:
        """One item a group: key, its name and description here, first number, checksums, numbers not over, their states."""
        dump = newest_dump(rank)
        if not dump:
            return None
        document: Dump = {**dump, "pg_config": _config(rank, dump)}
        columns = plain_columns(rank.rank, "", document, self._names, self._categories)
        for column in columns.groups:
            group = column.group
            self.groups[group.key] = Members(name=group.name, ranks=group.members)
        return [_told(_newest(column)) for column in columns.groups]


def _config(rank: RankEvidence, dump: Dump) -> dict[str, GroupConfig]:
    """gloo's dumps do not say who is in a group: the rank's own settings do."""
    said: dict[str, GroupConfig] = {
        group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))}
        for group in rank.settings.groups
    }
    told = {k: v for k, v in (dump.get("pg_config") or {}).items() if v.get("ranks") not in (None, "[]", "")}
    return {**said, **told}


def _newest(column: GroupColumn) -> GroupColumn:
    """Whatever is not over stays."""
    first = min((column.last - NEWEST + 1, *column.open_seqs))
    kept = max(first, column.first)
    return replace(column, first=kept, codes=column.codes[kept - column.first :])


def _told(column: GroupColumn) -> list[Any]:
    return [
        column.group.key,
        list(column.process_group),
        column.first,
        list(column.codes),
        list(column.open_seqs),
        list(column.open_states),
    ]


def columns_of_row(row: list[Any], groups: dict[str, Group]) -> tuple[GroupColumn, ...]:
    """The same columns again, at the centre; ranks that issued the same share them. Raises on any other shape."""
    return tuple(
        GroupColumn(
            group=groups[key],
            process_group=(str(process_group[0]), str(process_group[1])),
            first=int(first),
            codes=array("I", codes),
            open_seqs=tuple(int(seq) for seq in open_seqs),
            open_states=tuple(int(state) for state in open_states),
        )
        for key, process_group, first, codes, open_seqs, open_states in row
    )


def rank_columns(rank: int, groups: tuple[GroupColumn, ...]) -> RankColumns:
    return RankColumns(
        rank=rank, file="", version="digest", groups=groups, open_transfers=0,
        entries=sum(len(column.codes) for column in groups),
    )  # fmt: skip

"""Columns of one rank's dump: per process group, one checksum for each collective."""

from __future__ import annotations

import hashlib
import marshal
import re
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nsadiag.evidence.recorder import Dump, Entry

SCHEDULED, STARTED, OVER = 0, 1, 2
# Of these each rank may rightly bring its own sizes, or none; the others must bring the same.
OWN_SIZES = re.compile(
    r"all_?to_?all|gather(?!_into)(?<!all_gather)$|scatter$|coalesced|send|recv", re.IGNORECASE
)

OF_TWO = re.compile(r"send|recv")

Codes: TypeAlias = "array[int]"


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group: equal for all its members, whatever number each of them gives it."""

    key: str  # of name and members
    name: str = field(compare=False)  # its description where it has one
    members: tuple[int, ...] = field(compare=False)  # empty where no configuration names them


@dataclass(frozen=True, kw_only=True)
class GroupColumn:
    """One rank's collectives in one group, by sequence number."""

    group: Group
    process_group: tuple[str, str]  # as this rank's entries have it
    first: int  # sequence number of codes[0]
    codes: Codes  # what was asked for, as a checksum; 0 where there is no entry
    open_seqs: tuple[int, ...]  # not over
    open_states: tuple[int, ...]  # SCHEDULED or STARTED

    @property
    def last(self) -> int:
        return self.first + len(self.codes) - 1

    @property
    def has_started(self) -> bool:
        """Whether the device has begun the first of those that are not over."""
        return self.open_states[:1] == (STARTED,)

    def is_new(self, seq: int) -> bool:
        """Whether the rank never asked for the like before, as far as its ring goes back."""
        before = self.codes[: max(seq - self.first, 0)]
        return len(before) > 0 and self.code(seq) not in before

    def code(self, seq: int) -> int:
        """0 where the rank has no such entry."""
        place = seq - self.first
        return int(self.codes[place]) if 0 <= place < len(self.codes) else 0


@dataclass(frozen=True, kw_only=True)
class RankColumns:
    """One dump."""

    rank: int  # negative where neither the file's name nor the dump tells
    file: str
    version: str
    groups: tuple[GroupColumn, ...]
    open_transfers: int  # sends and receives that are not over
    entries: int


def dump_columns(
    rank: int, file: str, document: Dump, groups: Iterable[GroupColumn], *, open_transfers: int, entries: int
) -> RankColumns:
    """The columns of a dump, with what it says of itself; `rank` is negative where its file's name does not tell."""
    told = document.get("rank")
    return RankColumns(
        rank=told if rank < 0 and type(told) is int else rank,
        file=file,
        version=str(document.get("version", "")),
        groups=tuple(sorted(groups, key=lambda column: column.group.key)),
        open_transfers=open_transfers,
        entries=entries,
    )


def config_of(document: Dump) -> dict[str, Any]:
    """The groups of a dump, as far as it has any."""
    config = document.get("pg_config")
    return dict(config) if isinstance(config, dict) else {}


@dataclass(frozen=True)
class Category:
    """All of an entry that many entries have in common."""

    process_group: tuple[str, str]
    code: int
    state: int
    is_p2p: bool


def op_of(profiling_name: str) -> str:
    """`nccl:all_reduce` is `all_reduce`."""
    return profiling_name.partition(":")[2] or profiling_name


MOST_MISSING = 1_000_000  # numbers of a group, between two that a dump has
# Each of ten thousand tensor-parallel groups has categories of its own.
MOST_CATEGORIES = 20_000
# What decides an entry's category; the rest are times and numbers of its own.
DECIDING = (
    "process_group", "pg_name", "pg_id", "profiling_name", "state", "retired", "is_p2p",
    "input_sizes", "input_dtypes", "output_sizes", "output_dtypes",
)  # fmt: skip


class Categories:
    """Computes each category once for all entries that say the same."""

    def __init__(self) -> None:
        self._known: dict[bytes, Category] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, entry: Entry) -> Category:
        """The category of an entry, or of as many of its fields as count."""
        # A third of what a repr takes, which was most of the time. Of version 2: later ones write who else holds a value.
        said = marshal.dumps([*map(entry.get, DECIDING)], 2)
        category = self._known.get(said)
        if category is None:
            if len(self._known) >= MOST_CATEGORIES:
                self._known.clear()
            category = self._known[said] = category_of(entry)
        return category


def category_of(entry: Entry) -> Category:
    """The operation, the ranks it is asked of, and whether it is over."""
    op = op_of(str(entry.get("profiling_name", "")))
    asked: tuple[Any, ...] = (op,)
    if not OWN_SIZES.search(op):
        asked = (
            op,
            *(entry.get(f"{way}_{what}") for way in ("input", "output") for what in ("sizes", "dtypes")),
        )
    return Category(
        process_group=process_group_of(entry),
        code=zlib.crc32(repr(_plain(asked)).encode()) or 1,
        state=_state(entry),
        is_p2p=bool(entry.get("is_p2p")) or bool(OF_TWO.match(op)),
    )


def process_group_of(entry: Entry) -> tuple[str, str]:
    """Name and description; torch before 2.4 had one name."""
    name, description = entry.get("process_group") or (entry.get("pg_name", entry.get("pg_id", 0)), "")
    return str(name), str(description)


def _state(entry: Entry) -> int:
    if entry.get("retired") or entry.get("state") == "completed":
        return OVER
    return STARTED if entry.get("state") == "started" else SCHEDULED


def _plain(value: Any) -> Any:
    """Tuples as lists: a pickle and a JSON of the same entry must give the same checksum."""
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


# torchcomms describes a communicator by its backend.
NO_DESCRIPTION = ("", "undefined", "nccl", "ncclx", "rccl", "rcclx", "gloo", "xccl")


class GroupNames:
    """Finds the group that an entry means in its dump's configuration; texts of members are parsed once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}

    def group(self, process_group: tuple[str, str], config: dict[str, Any]) -> Group:
        name, description = process_group
        shown = name if description in NO_DESCRIPTION else description
        found = config.get(name)
        # gloo's entries call a group "0" that its configuration calls "".
        if not isinstance(found, dict) or found.get("desc", description) != description:
            alike = [c for c in config.values() if isinstance(c, dict) and c.get("desc") == description]
            found = alike[0] if len(alike) == 1 else found
        ranks = found.get("ranks") if isinstance(found, dict) else None
        text = ranks if isinstance(ranks, str) else repr(ranks or "")
        if (shown, text) not in self._groups:
            numbers = re.findall(r"\d+", text)
            members = tuple(sorted({int(n) for n in numbers}))
            key = hashlib.sha256(repr((shown, members)).encode()).hexdigest()[:16]
            self._groups[shown, text] = Group(key=key, name=shown, members=members)
        return self._groups[shown, text]

"""The few dumps that are read in full: of ranks that others wait for, and of some that wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nsadiag.analysis.ingest.dumps.columns import Group, process_group_of
from nsadiag.analysis.ingest.dumps.plain import seq_of
from nsadiag.analysis.ingest.dumps.pool import DumpFile, Refused, Wanted, read_closely
from nsadiag.analysis.relations.pending import Pending
from nsadiag.analysis.scale.dumps.dump_set import DumpSet
from nsadiag.evidence.recorder import Dump, Entry, GroupConfig

# Up to so many ranks all dumps are read in full.
FEW_RANKS = 16
SHOWN_OF_EACH = 8
MOST_PENDING = 4


@dataclass(frozen=True, kw_only=True)
class Details:
    """Dumps cut down to what matters, by rank; each entry has its number in the file as `index`."""

    documents: dict[int, Dump]
    kinds: tuple[
        tuple[int, ...], ...
    ] = ()  # where not all are read: ranks that stand alike in every pending call
    pending_s: float | None = (
        None  # age of what is pending when the dumps were written, if the files' times can be believed
    )


def details_of(dumps: DumpSet, pool: ProcessPoolExecutor) -> Details:
    """Reads again, and whole, what a person would open."""
    few = len(dumps.ranks) <= FEW_RANKS
    seen = dumps.all_pending if few else _with_other_culprits(dumps, that_matter(dumps))
    kinds = () if few else _kinds(dumps, seen)
    ranks = sorted(rank for kind in kinds for rank in kind[:SHOWN_OF_EACH]) if kinds else [*dumps.ranks]
    wanted = [_wanted(dumps, rank, {} if few else {each.group: each.seq for each in seen}) for rank in ranks]
    documents = {}
    for rank, document in zip(ranks, read_closely(pool, wanted), strict=True):
        if not isinstance(document, Refused):
            documents[rank] = _cut_down(dumps, rank, document, seen, set(ranks))
    return Details(documents=documents, kinds=kinds, pending_s=_pending_s(dumps, documents))


def that_matter(dumps: DumpSet) -> tuple[Pending, ...]:
    """The root, and where those it waits for are held up themselves: else its followers would be blamed."""
    chosen: list[Pending] = []
    todo = list(dumps.all_pending[:1])
    while todo and len(chosen) < MOST_PENDING:
        pending = todo.pop(0)
        chosen.append(pending)
        held_up = dumps.held_up_elsewhere(pending)
        if held_up and held_up >= {*pending.deviating}:
            follows = (m for m in dumps.all_pending if m not in chosen and m not in todo)
            todo += [m for m in follows if held_up & {*m.waiting} and (m.missing or m.outliers)]
    return tuple(chosen)


def _with_other_culprits(dumps: DumpSet, chosen: tuple[Pending, ...]) -> tuple[Pending, ...]:
    """These calls, and those that wait for ranks of their own or on devices of their own."""
    elsewhere = [m for m, _ in dumps.missing_elsewhere(chosen[0])][:MOST_PENDING] if chosen else []
    return tuple({m.group: m for m in (*elsewhere, *_behind(dumps), *chosen)}.values())


def _behind(dumps: DumpSet) -> tuple[Pending, ...]:
    """As few of those on the completion frontier as name every rank that is behind."""
    chosen: list[Pending] = []
    named: set[int] = set()
    for pending in sorted(dumps.behind, key=lambda m: (-len(m.waiting), m.group)):
        if not named >= {*pending.waiting} and len(chosen) < MOST_PENDING:
            chosen.append(pending)
            named |= {*pending.waiting}
    return tuple(chosen)


def _kinds(dumps: DumpSet, seen: Iterable[Pending]) -> tuple[tuple[int, ...], ...]:
    """Ranks that stand alike in each of these calls."""
    stances: dict[int, list[Hashable]] = {rank: [] for rank in dumps.ranks}
    columns = {group.key: own for group, own in dumps.groups.items()}
    for each in seen:
        parts = (each.waiting, each.started, each.completed, each.missing)
        of_rank = {rank: number for number, part in enumerate(parts) for rank in part}
        for rank, stance in stances.items():
            own = columns[each.group].get(rank)
            stance.append((of_rank.get(rank), own.code(each.seq) if own and each.outliers else 0))
    found: dict[tuple[Hashable, ...], list[int]] = {}
    for rank, stance in stances.items():
        found.setdefault(tuple(stance), []).append(rank)
    return tuple(tuple(kind) for kind in found.values())


def _wanted(dumps: DumpSet, rank: int, first: dict[str, int]) -> Wanted:
    """The entries of these groups from that number on; without any, all of all groups."""
    columns = dumps.ranks[rank]
    return Wanted(
        file=DumpFile(path=columns.file, rank=rank),
        groups=tuple(
            (*c.process_group, first.get(c.group.key))
            for c in columns.groups
            if c.group.key in first or not first
        ),
    )


def _cut_down(dumps: DumpSet, rank: int, document: Dump, seen: tuple[Pending, ...], shown: set[int]) -> Dump:
    """Groups that share a name get one of their own, and have the members that are shown or left no dump."""
    groups = {group.key: group for group in dumps.groups}
    names = _names(groups[each.group] for each in seen)
    columns = {c.process_group: c for c in dumps.ranks[rank].groups}
    config, entries = dict[str, GroupConfig](), list[Entry]()

    def configure(name: str, description: str, members: Iterable[int]) -> None:
        kept = [r for r in members if r in shown or r not in dumps.ranks]
        config[name] = {"name": name, "desc": description, "ranks": str(kept)}

    for column in columns.values():
        configure(
            column.process_group[0], names.get(column.group.key, column.group.name), column.group.members
        )
    for entry in document["entries"]:
        own = columns.get(process_group_of(entry))
        if own is not None:
            entries.append(
                {**entry, "process_group": [own.process_group[0], names.get(own.group.key, own.group.name)]}
            )
        elif entry.get("is_p2p"):
            entries.append(entry)
    # A rank that never issued anything in a group is a member of it all the same.
    for pending in seen:
        if rank in pending.missing and not any(c.group.key == pending.group for c in columns.values()):
            configure(pending.group, names[pending.group], groups[pending.group].members)
    return {**document, "pg_config": config, "entries": [_as_of_today(e) for e in entries]}


def _names(groups: Iterable[Group]) -> dict[str, str]:
    """By key; of groups that share a name, with the members, of which not all are shown."""
    found = [*groups]
    names = [group.name for group in found]
    spans = {g.key: f"{g.name} of ranks {g.members[0]}-{g.members[-1]}" for g in found if g.members}
    return {g.key: g.name if names.count(g.name) == 1 else spans.get(g.key, g.name) for g in found}


def _as_of_today(entry: Entry) -> Entry:
    """With the fields that torch 2.4 to 2.13 have under one name or another."""
    return {
        **entry,
        "collective_seq_id": seq_of(entry),
        "profiling_name": entry.get("profiling_name", ""),
        "process_group": entry.get("process_group") or [str(entry.get("pg_id", 0)), ""],
    }


def _pending_s(dumps: DumpSet, documents: dict[int, Dump]) -> float | None:
    ages = []
    for pending in dumps.all_pending[:1]:
        for rank in [r for r in pending.waiting if r in documents][:SHOWN_OF_EACH]:
            entries = [e for e in documents[rank]["entries"] if e["collective_seq_id"] == pending.seq]
            began = [int(e.get("time_created_ns") or 0) / 1e9 for e in entries if not e.get("is_p2p")]
            ages += [Path(dumps.ranks[rank].file).stat().st_mtime - each for each in began if each]
    return min(ages) if ages and min(ages) >= 0 else None

"""The few dumps that are read in full: of ranks that others wait for, and of some that wait."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from nsadiag.analysis.ingest.dumps.columns import process_group_of
from nsadiag.analysis.ingest.dumps.plain import seq_of
from nsadiag.analysis.ingest.dumps.pool import DumpFile, Refused, Wanted, read_closely
from nsadiag.analysis.scale.dumps.dump_set import DumpSet, PendingCollective
from nsadiag.evidence.recorder import Dump, Entry, GroupConfig

# Below this many ranks all of them are looked at.
FEW_RANKS = 16
SHOWN_OF_EACH = 8
MOST_PENDING = 4


@dataclass(frozen=True, kw_only=True)
class Details:
    """Dumps cut down to what matters, by rank; each entry has its number in the file as `index`."""

    all_pending: tuple[PendingCollective, ...]
    documents: dict[int, Dump]
    behind: tuple[PendingCollective, ...] = ()  # in which some ranks have not completed what others have


def details_of(dumps: DumpSet, pool: ProcessPoolExecutor) -> Details:
    """Reads again, and whole, what a person would open."""
    all_pending, late = that_matter(dumps), behind(dumps)
    elsewhere = [m for m, _ in dumps.missing_elsewhere(all_pending[0])][:MOST_PENDING] if all_pending else []
    seen = tuple({m.group.key: m for m in (*elsewhere, *late, *all_pending)}.values())
    ranks = _to_show(dumps, seen)
    wanted = [_wanted(dumps, rank, seen) for rank in ranks]
    documents = {}
    for rank, document in zip(ranks, read_closely(pool, wanted), strict=True):
        if not isinstance(document, Refused):
            documents[rank] = _cut_down(dumps, rank, document, seen, set(ranks))
    return Details(all_pending=all_pending, documents=documents, behind=late)


def behind(dumps: DumpSet) -> tuple[PendingCollective, ...]:
    """As few of those on the completion frontier as name every rank that is behind."""
    chosen: list[PendingCollective] = []
    named: set[int] = set()
    for pending in sorted(dumps.behind, key=lambda m: (-len(m.waiting), m.group.key)):
        if not named >= {*pending.waiting} and len(chosen) < MOST_PENDING:
            chosen.append(pending)
            named |= {*pending.waiting}
    return tuple(chosen)


def that_matter(dumps: DumpSet) -> tuple[PendingCollective, ...]:
    """The root, and where those it waits for are held up themselves: else its followers would be blamed."""
    chosen: list[PendingCollective] = []
    todo = list(dumps.all_pending[:1])
    while todo and len(chosen) < MOST_PENDING:
        pending = todo.pop(0)
        chosen.append(pending)
        held_up = dumps.held_up_elsewhere(pending)
        if held_up and held_up >= {*pending.deviating}:
            follows = (m for m in dumps.all_pending if m not in chosen and m not in todo)
            todo += [m for m in follows if held_up & {*m.waiting} and (m.missing or m.outliers)]
    return tuple(chosen)


def _to_show(dumps: DumpSet, all_pending: tuple[PendingCollective, ...]) -> tuple[int, ...]:
    if len(dumps.ranks) <= FEW_RANKS:
        return tuple(dumps.ranks)
    parts = [part for m in all_pending for part in (m.deviating, m.conforming, m.completed)] or [
        tuple(dumps.ranks)
    ]
    return tuple(sorted({rank for part in parts for rank in part[:SHOWN_OF_EACH]}))


def _wanted(dumps: DumpSet, rank: int, all_pending: tuple[PendingCollective, ...]) -> Wanted:
    columns = dumps.ranks[rank]
    first = {m.group.key: m.seq for m in all_pending}
    return Wanted(
        file=DumpFile(path=columns.file, rank=rank),
        groups=tuple(
            (*c.process_group, first.get(c.group.key, c.last))
            for c in columns.groups
            if c.group.key in first or not all_pending
        ),
    )


def _cut_down(
    dumps: DumpSet, rank: int, document: Dump, all_pending: tuple[PendingCollective, ...], shown: set[int]
) -> Dump:
    """Groups that share a name get one of their own, and have the members that are shown or left no dump."""
    names = _names(all_pending)
    columns = {c.process_group: c for c in dumps.ranks[rank].groups}
    config, entries = dict[str, GroupConfig](), list[Entry]()
    for column in columns.values():
        members = [r for r in column.group.members if r in shown or r not in dumps.ranks]
        name = names.get(column.group.key, column.group.name)
        config[column.process_group[0]] = {
            "name": column.process_group[0],
            "desc": name,
            "ranks": str(members),
        }
    for entry in document["entries"]:
        own = columns.get(process_group_of(entry))
        if own is not None:
            name = names.get(own.group.key, own.group.name)
            entries.append({**entry, "process_group": [own.process_group[0], name]})
        elif entry.get("is_p2p"):
            entries.append(entry)
    # A rank that never issued anything in a group is a member of it all the same.
    for pending in all_pending:
        if rank in pending.missing and not any(c.group == pending.group for c in columns.values()):
            members = [r for r in pending.group.members if r in shown or r not in dumps.ranks]
            name = names[pending.group.key]
            config[name] = {"name": name, "desc": name, "ranks": str(members)}
    return {**document, "pg_config": config, "entries": [_as_of_today(e) for e in entries]}


def _as_of_today(entry: Entry) -> Entry:
    """With the fields that torch 2.4 to 2.13 have under one name or another."""
    return {
        **entry,
        "collective_seq_id": seq_of(entry),
        "profiling_name": entry.get("profiling_name", ""),
        "process_group": entry.get("process_group") or [str(entry.get("pg_id", 0)), ""],
    }


def _names(all_pending: tuple[PendingCollective, ...]) -> dict[str, str]:
    names = [m.group.name for m in all_pending]
    return {
        m.group.key: m.group.name
        if names.count(m.group.name) == 1
        else f"{m.group.name} of {_span(m.group.members)}"
        for m in all_pending
    }


def _span(members: tuple[int, ...]) -> str:
    return f"ranks {members[0]}-{members[-1]}" if members else "unknown ranks"

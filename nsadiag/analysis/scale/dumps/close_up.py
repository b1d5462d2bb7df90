"""The few dumps that are read in full: of ranks that others wait for, and of some that wait."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from nsadiag.analysis.ingest.dumps.columns import process_group_of
from nsadiag.analysis.ingest.dumps.plain import seq_of
from nsadiag.analysis.ingest.dumps.pool import DumpFile, Refused, Wanted, read_closely
from nsadiag.analysis.scale.dumps.crowd import Crowd, Meeting
from nsadiag.evidence.recorder import Dump, Entry, GroupConfig

# Below this many ranks all of them are looked at.
FEW_RANKS = 16
SHOWN_OF_EACH = 8
MOST_MEETINGS = 4


@dataclass(frozen=True, kw_only=True)
class CloseUp:
    """Dumps cut down to what matters, by rank; each entry has its number in the file as `index`."""

    meetings: tuple[Meeting, ...]
    documents: dict[int, Dump]
    behind: tuple[Meeting, ...] = ()  # in which some ranks have not completed what others have


def close_up(crowd: Crowd, pool: ProcessPoolExecutor) -> CloseUp:
    """Reads again, and whole, what a person would open."""
    meetings, late = that_matter(crowd), behind(crowd)
    elsewhere = [m for m, _ in crowd.missing_elsewhere(meetings[0])][:MOST_MEETINGS] if meetings else []
    seen = tuple({m.group.key: m for m in (*elsewhere, *late, *meetings)}.values())
    ranks = _to_show(crowd, seen)
    wanted = [_wanted(crowd, rank, seen) for rank in ranks]
    documents = {}
    for rank, document in zip(ranks, read_closely(pool, wanted), strict=True):
        if not isinstance(document, Refused):
            documents[rank] = _cut_down(crowd, rank, document, seen, set(ranks))
    return CloseUp(meetings=meetings, documents=documents, behind=late)


def behind(crowd: Crowd) -> tuple[Meeting, ...]:
    """As few of those on the completion frontier as name every rank that is behind."""
    chosen: list[Meeting] = []
    named: set[int] = set()
    for meeting in sorted(crowd.behind, key=lambda m: (-len(m.waiting), m.group.key)):
        if not named >= {*meeting.waiting} and len(chosen) < MOST_MEETINGS:
            chosen.append(meeting)
            named |= {*meeting.waiting}
    return tuple(chosen)


def that_matter(crowd: Crowd) -> tuple[Meeting, ...]:
    """The root, and where those it waits for are held up themselves: else its followers would be blamed."""
    chosen: list[Meeting] = []
    todo = list(crowd.meetings[:1])
    while todo and len(chosen) < MOST_MEETINGS:
        meeting = todo.pop(0)
        chosen.append(meeting)
        held_up = crowd.held_up_elsewhere(meeting)
        if held_up and held_up >= {*meeting.deviating}:
            follows = (m for m in crowd.meetings if m not in chosen and m not in todo)
            todo += [m for m in follows if held_up & {*m.waiting} and (m.missing or m.odd)]
    return tuple(chosen)


def _to_show(crowd: Crowd, meetings: tuple[Meeting, ...]) -> tuple[int, ...]:
    if len(crowd.ranks) <= FEW_RANKS:
        return tuple(crowd.ranks)
    parts = [part for m in meetings for part in (m.deviating, m.conforming, m.completed)] or [
        tuple(crowd.ranks)
    ]
    return tuple(sorted({rank for part in parts for rank in part[:SHOWN_OF_EACH]}))


def _wanted(crowd: Crowd, rank: int, meetings: tuple[Meeting, ...]) -> Wanted:
    columns = crowd.ranks[rank]
    first = {m.group.key: m.seq for m in meetings}
    return Wanted(
        file=DumpFile(path=columns.file, rank=rank),
        groups=tuple(
            (*c.process_group, first.get(c.group.key, c.last))
            for c in columns.groups
            if c.group.key in first or not meetings
        ),
    )


def _cut_down(
    crowd: Crowd, rank: int, document: Dump, meetings: tuple[Meeting, ...], shown: set[int]
) -> Dump:
    """Groups that share a name get one of their own, and have the members that are shown or left no dump."""
    names = _names(meetings)
    columns = {c.process_group: c for c in crowd.ranks[rank].groups}
    config, entries = dict[str, GroupConfig](), list[Entry]()
    for column in columns.values():
        members = [r for r in column.group.members if r in shown or r not in crowd.ranks]
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
    for meeting in meetings:
        if rank in meeting.missing and not any(c.group == meeting.group for c in columns.values()):
            members = [r for r in meeting.group.members if r in shown or r not in crowd.ranks]
            name = names[meeting.group.key]
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


def _names(meetings: tuple[Meeting, ...]) -> dict[str, str]:
    names = [m.group.name for m in meetings]
    return {
        m.group.key: m.group.name
        if names.count(m.group.name) == 1
        else f"{m.group.name} of {_span(m.group.members)}"
        for m in meetings
    }


def _span(members: tuple[int, ...]) -> str:
    return f"ranks {members[0]}-{members[-1]}" if members else "unknown ranks"

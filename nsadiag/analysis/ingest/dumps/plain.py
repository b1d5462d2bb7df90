"""The restricted unpickler, and the columns of a dump of any form, entry by entry."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, cast

from nsadiag.analysis.ingest.dumps.columns import (
    MOST_MISSING,
    OVER,
    Categories,
    Category,
    Group,
    GroupColumn,
    GroupNames,
    RankColumns,
    config_of,
    dump_columns,
    process_group_of,
)
from nsadiag.evidence.pickles import PickleRefused
from nsadiag.evidence.recorder import Dump, Entry


class PlainUnpickler(pickle.Unpickler):
    """The standard library's, in C, without any name: what is left builds plain containers only.

    A pickle of six bytes can still ask for all memory there is: only for a process whose memory is limited.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise PickleRefused(f"it asks for {module}.{name}: only plain values are read from a pickle")

    def persistent_load(self, pid: Any) -> Any:
        raise PickleRefused("it asks for an object from elsewhere: only plain values are read from a pickle")


def unpickle(data: bytes) -> Any:
    """The value. Raises PickleRefused, and nothing else."""
    try:
        # The unpickler reads ahead where it may peek: otherwise each instruction is a call, four times as slow.
        return PlainUnpickler(io.BufferedReader(io.BytesIO(data))).load()
    except PickleRefused:
        raise
    except MemoryError:
        raise PickleRefused("it asks for more memory than any dump needs") from None
    except Exception as error:
        raise PickleRefused(f"not a whole pickle ({type(error).__name__}: {error})"[:200]) from None


def document_of(data: bytes) -> Dump:
    """The dump in a file, JSON or pickle. Raises PickleRefused if it is neither, or no dump."""
    if data[:1] in b"{[ \n" and data[:1]:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PickleRefused(f"not whole JSON ({error})"[:200]) from None
    else:
        document = unpickle(data)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list | tuple):
        raise PickleRefused("no flight-recorder dump: it has no entries")
    return _numbered_by_group(cast("Dump", document))


def _numbered_by_group(document: Dump) -> Dump:
    """With a count for each group where one counts over all: peers agree on how many collectives a group has had."""
    entries = entries_of(document)
    groups = [process_group_of(entry) for entry in entries]
    if not counts_over_all([seq_of(entry) for entry in entries], groups):
        return document
    counted: Counter[tuple[str, str]] = Counter()
    for entry, group in zip(entries, groups, strict=True):
        counted[group] += 1
        entry["collective_seq_id"] = counted[group]
    return document


def counts_over_all(seqs: Sequence[int], groups: Iterable[tuple[str, str]]) -> bool:
    """Whether these numbers, in the order of issue, are one count over several groups, as torchcomms' recorder has it."""
    several = len(set(groups)) > 1
    return several and seqs[0] <= 1 and all(after - before == 1 for before, after in itertools.pairwise(seqs))


def entries_of(document: Dump) -> list[Entry]:
    """Those that have what an entry must have."""
    return [e for e in document["entries"] if isinstance(e, dict) and is_whole(seq_of(e))]


def is_whole(seq: Any) -> bool:
    """Whether it can be a sequence number."""
    return type(seq) is int and 0 <= seq < 2**62


def seq_of(entry: Entry) -> Any:
    """torch before 2.4 had one number for collectives and transfers."""
    return entry.get("collective_seq_id", entry.get("seq_id"))


def plain_columns(
    rank: int, file: str, document: Dump, names: GroupNames, categories: Categories
) -> RankColumns:
    """Its columns, entry by entry."""
    config = config_of(document)
    asked = [(seq_of(entry), categories.of(entry)) for entry in entries_of(document)]
    of_group: dict[tuple[str, str], list[tuple[int, Category]]] = defaultdict(list)
    for seq, category in asked:
        if not category.is_p2p:
            of_group[category.process_group].append((seq, category))
    columns = [_group_column(names.group(own, config), own, rows) for own, rows in of_group.items()]
    open_transfers = sum(category.is_p2p and category.state != OVER for _, category in asked)
    return dump_columns(rank, file, document, columns, open_transfers=open_transfers, entries=len(asked))


def _group_column(
    group: Group, process_group: tuple[str, str], rows: list[tuple[int, Category]]
) -> GroupColumn:
    """From entries in any order; several under one number (coalesced) count as one.

    A group's collectives are over in order: what is said to be open before one that is over was only not looked at.
    """
    last = max(seq for seq, _ in rows)
    # No ring holds as many: numbers of a damaged entry.
    first = max(min(seq for seq, _ in rows), last - MOST_MISSING)
    codes = array("I", bytes(4 * (last - first + 1)))
    states = bytearray([OVER]) * len(codes)
    for seq, category in rows:
        place = seq - first
        if place >= 0:
            codes[place] = (codes[place] + category.code) & 0xFFFFFFFF
            states[place] = min(states[place], category.state)
    is_open = range(states.rfind(OVER) + 1, len(states))
    return GroupColumn(
        group=group,
        process_group=process_group,
        first=first,
        codes=codes,
        open_seqs=tuple(first + place for place in is_open),
        open_states=tuple(states[place] for place in is_open),
    )

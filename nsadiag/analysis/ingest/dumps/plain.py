"""The restricted unpickler, and the columns of a dump of any form, entry by entry."""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from typing import Any, cast

import numpy as np

from nsadiag.analysis.ingest.dumps.columns import (
    Categories,
    GroupNames,
    RankColumns,
    columns_of,
    counts_over_all,
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


def unpickle(data: bytes, after: PlainUnpickler | None = None) -> tuple[Any, PlainUnpickler]:
    """The value, and the reader with its memo; `after`: one whose memo it begins with. Raises PickleRefused, and nothing else."""
    reader = PlainUnpickler(io.BytesIO(data))
    if after is not None:
        reader.memo = after.memo
    try:
        return reader.load(), reader
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
        document, _ = unpickle(data)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list | tuple):
        raise PickleRefused("no flight-recorder dump: it has no entries")
    return _numbered_by_group(cast("Dump", document))


def _numbered_by_group(document: Dump) -> Dump:
    """With a count for each group where one counts over all: peers agree on how many collectives a group has had."""
    entries = entries_of(document)
    groups = [process_group_of(entry) for entry in entries]
    if not counts_over_all(np.array([seq_of(entry) for entry in entries], dtype=np.int64), groups):
        return document
    counted: Counter[tuple[str, str]] = Counter()
    for entry, group in zip(entries, groups, strict=True):
        counted[group] += 1
        entry["collective_seq_id"] = counted[group]
    return document


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
    entries = entries_of(document)
    seqs = np.array([seq_of(e) for e in entries], dtype=np.int64)
    asked = [categories.of(e) for e in entries]
    return columns_of(rank, file, document, names, seqs, asked, np.arange(len(entries)))

"""One dump as plain values, and its columns: for every form that the quick reader does not know."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import numpy as np

from nsadiag.analysis.scale.dumps.columns import Categories, GroupNames, RankColumns, columns_of
from nsadiag.evidence.pickles import PickleRefused


class PlainUnpickler(pickle.Unpickler):
    """The standard library's, in C, without any name: what is left builds plain containers only.

    A pickle of six bytes can still ask for all memory there is: only for a process whose memory is limited.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise PickleRefused(f"it asks for {module}.{name}: only plain values are read from a pickle")

    def persistent_load(self, pid: Any) -> Any:
        raise PickleRefused("it asks for an object from elsewhere: only plain values are read from a pickle")


def unpickle(data: bytes) -> tuple[Any, dict[int, Any]]:
    """The value, and what its memo held in the end. Raises PickleRefused, and nothing else."""
    reader = PlainUnpickler(io.BytesIO(data))
    try:
        return reader.load(), dict(reader.memo.copy())
    except PickleRefused:
        raise
    except MemoryError:
        raise PickleRefused("it asks for more memory than any dump needs") from None
    except Exception as error:
        raise PickleRefused(f"not a whole pickle ({type(error).__name__}: {error})"[:200]) from None


def document_of(data: bytes) -> dict[str, Any]:
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
    return document


def entries_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that have what an entry must have."""
    return [e for e in document["entries"] if isinstance(e, dict) and is_whole(seq_of(e))]


def is_whole(seq: Any) -> bool:
    """Whether it can be a sequence number."""
    return type(seq) is int and 0 <= seq < 2**62


def seq_of(entry: dict[str, Any]) -> Any:
    """torch before 2.4 had one number for collectives and transfers."""
    return entry.get("collective_seq_id", entry.get("seq_id"))


def plain_columns(
    rank: int, file: str, document: dict[str, Any], names: GroupNames, categories: Categories
) -> RankColumns:
    """Its columns, entry by entry."""
    entries = entries_of(document)
    numbers = np.array([categories.number(e) for e in entries], dtype=np.intp)
    seqs = np.array([seq_of(e) for e in entries], dtype=np.int64)
    return columns_of(rank, file, document, names, seqs, numbers, categories)

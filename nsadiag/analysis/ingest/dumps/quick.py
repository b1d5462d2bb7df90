"""The columns of one pickled dump, most of it read without building a single value.

The beginning (names, configuration, the first entries, with all strings) and the end go through the unpickler, and of the
thousands of entries in between one of each kind: all of them are rows of a few layouts. Any doubt raises Unreadable, and
the whole file goes through the unpickler.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.ingest.dumps.arrays import columns_of
from nsadiag.analysis.ingest.dumps.columns import (
    Categories,
    Category,
    GroupNames,
    RankColumns,
    Unreadable,
)
from nsadiag.analysis.ingest.dumps.layouts import LONGEST, Layout, NewString, layout_of, padded
from nsadiag.analysis.ingest.dumps.parts import Parts, cut, first_guess
from nsadiag.analysis.ingest.dumps.plain import PlainUnpickler, counts_over_all, entries_of, seq_of, unpickle
from nsadiag.evidence.pickles import PickleRefused
from nsadiag.evidence.recorder import Dump, Entry

MOST_LAYOUTS = 512
MOST_SHAPES = 64

Places: TypeAlias = npt.NDArray[np.intp]
Share: TypeAlias = tuple[Layout, Places, npt.NDArray[np.uint8]]


class _NewStrings(Exception):
    """The entry of this number, and perhaps others before it, must be built."""

    def __init__(self, entry: int) -> None:
        self.entry = entry


class QuickReader:
    """Remembers layouts from one file to the next: ranks of one job write alike."""

    def __init__(self, names: GroupNames, categories: Categories) -> None:
        self._names, self._categories = names, categories
        self._layouts: dict[int, list[Layout]] = {}
        self._count = 0
        self._before: dict[tuple[int, bytes], list[tuple[Layout, Places]]] = {}
        self._known: dict[str, dict[int, Category]] = {}
        self._places: set[int] = set()  # in the memo, at which anything was seen that decides

    def columns(self, rank: int, file: str, data: bytes) -> RankColumns:
        """Raises Unreadable where only the unpickler can tell."""
        parts = cut(data)
        head, tail = first_guess(parts)
        for _ in range(4):
            try:
                return self._columns(rank, file, parts, head, tail)
            except _NewStrings as more:
                if more.entry < len(parts) // 2:
                    head = more.entry + 1
                else:
                    tail = more.entry
        raise Unreadable("many entries hold strings of their own")

    def _columns(self, rank: int, file: str, parts: Parts, head: int, tail: int) -> RankColumns:
        document, reader = _built(parts.spliced(head, tail), head + len(parts) - tail)
        seqs, kinds, categories = self._between(parts, head, tail, reader)
        own = entries_of(document)
        own_seqs, own_kinds = np.array([seq_of(e) for e in own], dtype=np.int64), np.arange(len(own))
        all_seqs = np.concatenate([own_seqs[:head], seqs, own_seqs[head:]])
        asked = [*map(self._categories.of, own), *categories]
        if counts_over_all(all_seqs.tolist(), (category.process_group for category in asked)):
            raise Unreadable("one count over several groups")
        return columns_of(
            rank,
            file,
            document,
            self._names,
            all_seqs,
            asked,
            np.concatenate([own_kinds[:head], len(own) + kinds, own_kinds[head:]]),
        )

    def _between(
        self, parts: Parts, head: int, tail: int, reader: PlainUnpickler
    ) -> tuple[npt.NDArray[np.int64], Places, list[Category]]:
        """Sequence number and kind of each entry between head and tail, and the category of each kind."""
        memo = reader.memo.copy()
        lengths = np.diff(parts.starts[head : tail + 1]) - parts.marker
        seqs, checksums = np.empty(tail - head, dtype=np.int64), np.empty(tail - head, dtype=np.uint64)
        numbers = np.empty(tail - head, dtype=np.intp)
        shares = self._shares_as_before(parts, head, lengths, memo) or self._shares(
            parts, head, lengths, memo
        )
        for number, (layout, mine, rows) in enumerate(shares):
            seqs[mine], numbers[mine] = layout.seqs(rows), number
            checksums[mine] = layout.checksums(rows.view(np.uint64))
        unique, first, kinds = np.unique(checksums, return_index=True, return_inverse=True)
        known = self._known_with(memo)
        new = [
            n for n, checksum in zip(first.tolist(), unique.tolist(), strict=True) if checksum not in known
        ]
        written = [parts.entry(head + n, shares[numbers[n]][0].end) for n in new]
        for n, entry in zip(new, _built_after(reader, written), strict=True):
            known[int(checksums[n])] = self._categories.of(entry)
            self._places |= shares[numbers[n]][0].places(parts.chunk(head + n))
        return seqs, kinds, [known[checksum] for checksum in unique.tolist()]

    def _known_with(self, memo: dict[int, Any]) -> dict[int, Category]:
        """Categories by checksum, of files that have the same in their memo where that decides."""
        if len(self._known) > MOST_SHAPES:
            self._known.clear()
        return self._known.setdefault(repr([memo.get(place) for place in sorted(self._places)]), {})

    def _shares_as_before(
        self, parts: Parts, head: int, lengths: npt.NDArray[np.int64], memo: dict[int, Any]
    ) -> list[Share] | None:
        """Ranks of one job write alike, entry by entry: tries what fitted a file whose entries were as long."""
        found = []
        for layout, mine in self._before.get((head, lengths.tobytes()), ()):
            rows = parts.rows(head + mine, 8 * len(layout.fixed))
            if not layout.knows(memo) or not layout.fits(rows.view(np.uint64)).all():
                return None
            found.append((layout, mine, rows))
        return found

    def _shares(
        self, parts: Parts, head: int, lengths: npt.NDArray[np.int64], memo: dict[int, Any]
    ) -> list[Share]:
        """Each layout with the entries that it fits, and their bytes."""
        found = []
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            todo = np.flatnonzero(lengths == length)
            table = parts.rows(head + todo, padded(length))
            tried = 0
            while len(todo):
                layout, number = self._layout(tried, length, memo, parts, head + int(todo[0]))
                tried = number + 1
                fits = layout.fits(table.view(np.uint64))
                if fits.any():
                    found.append((layout, todo[fits], table[fits]))
                todo, table = todo[~fits], table[~fits]
        if len(self._before) > MOST_SHAPES:
            self._before.clear()
        self._before[head, lengths.tobytes()] = [(layout, mine) for layout, mine, _ in found]
        return found

    def _layout(
        self, tried: int, length: int, memo: dict[int, Any], parts: Parts, entry: int
    ) -> tuple[Layout, int]:
        """The next one known of that length that fits its names to the memo, else a new one from the entry."""
        known = self._layouts.setdefault(length, [])
        for number in range(tried, len(known)):
            if known[number].knows(memo):
                return known[number], number
        if self._count >= MOST_LAYOUTS or length > 8 * LONGEST - 8:
            raise Unreadable("no two entries are alike")
        try:
            known.append(layout_of(parts.chunk(entry), memo, parts.first_field, number=self._count))
        except NewString:
            raise _NewStrings(entry) from None
        except (IndexError, ValueError) as error:
            raise Unreadable(f"not one entry ({error!r})") from None
        self._count += 1
        return known[-1], len(known) - 1


def _built_after(reader: PlainUnpickler, written: list[bytes]) -> list[Entry]:
    try:
        found, _ = unpickle(b"\x80\x02](" + b"".join(written) + b"e.", reader)
    except PickleRefused as error:
        raise Unreadable(str(error)) from None
    if len(found) != len(written) or not all(isinstance(entry, dict) for entry in found):
        raise Unreadable("not one entry")
    return list(found)


def _built(spliced: bytes, count: int) -> tuple[Dump, PlainUnpickler]:
    try:
        document, reader = unpickle(spliced)
    except PickleRefused as error:
        raise Unreadable(str(error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise Unreadable("no entries")
    dump = cast("Dump", document)
    if len(entries_of(dump)) != count or len(dump["entries"]) != count:
        raise Unreadable("the beginning and the end do not fit together")
    return dump, reader

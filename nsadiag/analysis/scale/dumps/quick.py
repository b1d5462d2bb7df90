"""The columns of one pickled dump, most of it read without building a single value.

The beginning (names, configuration, the first entries, with all strings) and the end go through the unpickler;
the thousands of entries in between are rows of a few layouts. Any doubt raises Unreadable, and the whole file
goes through the unpickler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.scale.dumps.columns import (
    Categories,
    Category,
    GroupNames,
    RankColumns,
    category_of,
    columns_of,
    process_group_of,
)
from nsadiag.analysis.scale.dumps.layouts import (
    Layout,
    NewString,
    Unreadable,
    layout_of,
    padded,
    places_in,
    resolved,
)
from nsadiag.analysis.scale.dumps.parts import Parts, cut, first_guess
from nsadiag.analysis.scale.dumps.plain import entries_of, seq_of, unpickle
from nsadiag.evidence.pickles import PickleRefused

OF_GROUP = ("process_group", "pg_name", "pg_id")
MOST_LAYOUTS = 512
MOST_SHAPES = 64
MOST_CATEGORIES = 20_000
WEIGHTS = np.random.default_rng(0).integers(1, 2**63, size=512, dtype=np.uint64) | np.uint64(1)


Share: TypeAlias = tuple[Layout, npt.NDArray[np.intp], npt.NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """The fields that decide an entry's category, with Get where the memo knows."""

    group: dict[str, Any]
    asked: dict[str, Any]
    places: tuple[int, ...]  # in the memo, that `asked` needs


class _NewStrings(Exception):
    """The entry of this number, and perhaps others before it, must be built."""

    def __init__(self, entry: int) -> None:
        self.entry = entry


class QuickReader:
    """Remembers layouts and categories from one file to the next: ranks of one job write alike."""

    def __init__(self, names: GroupNames, categories: Categories) -> None:
        self._names, self._categories = names, categories
        self._layouts: dict[int, list[Layout]] = {}
        self._count = 0
        self._before: dict[tuple[int, bytes], list[tuple[Layout, npt.NDArray[np.intp]]]] = {}
        self._read: dict[int, Deciding] = {}  # by checksum
        self._bases: dict[tuple[int, tuple[Any, ...]], Category] = {}  # for any group
        self._places: tuple[int, ...] = ()  # all that were ever used
        self._alike: dict[
            tuple[Any, ...], dict[int, int]
        ] = {}  # categories by checksum, in files with these strings

    def columns(self, rank: int, file: str, data: bytes) -> RankColumns:
        """Raises Unreadable where only the unpickler can tell."""
        if len(self._categories.all) > MOST_CATEGORIES:
            self._forget()
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

    def _forget(self) -> None:
        """Each of ten thousand tensor-parallel groups has categories of its own."""
        self._categories.clear()
        self._alike.clear()

    def _columns(self, rank: int, file: str, parts: Parts, head: int, tail: int) -> RankColumns:
        document, memo = _built(parts.spliced(head, tail), head + len(parts) - tail)
        seqs, hashes, rows = self._rows(parts, head, tail, memo)
        unique, example, middle = np.unique(hashes, return_index=True, return_inverse=True)
        alike = self._alike.setdefault(tuple(memo.get(place) for place in self._places), {})
        numbers = np.empty(len(unique), dtype=np.intp)
        for at, (checksum, entry) in enumerate(zip(unique.tolist(), example.tolist(), strict=True)):
            number = alike.get(checksum)
            if number is None:
                number = alike[checksum] = self._category(checksum, *rows(entry), memo)
            numbers[at] = number
        entries = entries_of(document)
        own_seqs = np.array([seq_of(e) for e in entries], dtype=np.int64)
        own = np.array([self._categories.number(e) for e in entries], dtype=np.intp)
        return columns_of(
            rank,
            file,
            document,
            self._names,
            np.concatenate([own_seqs[:head], seqs, own_seqs[head:]]),
            np.concatenate([own[:head], numbers[middle], own[head:]]),
            self._categories,
        )

    def _rows(
        self, parts: Parts, head: int, tail: int, memo: dict[int, Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], Callable[[int], tuple[Layout, bytes]]]:
        """Sequence number and checksum of each entry between head and tail, and how to see one of them."""
        lengths = np.diff(parts.starts[head : tail + 1]) - parts.marker
        seqs = np.empty(tail - head, dtype=np.int64)
        hashes = np.empty(tail - head, dtype=np.uint64)
        layout_of_entry = np.empty(tail - head, dtype=np.intp)
        shares = self._shares_as_before(parts, head, lengths, memo) or self._shares(
            parts, head, lengths, memo
        )
        for place, (layout, mine, rows) in enumerate(shares):
            seqs[mine] = layout.seqs(rows)
            wide = rows.view(np.uint64)
            weighted = (wide & layout.deciding) * WEIGHTS[: wide.shape[1]]
            hashes[mine] = weighted.sum(axis=1) ^ np.uint64(layout.number)
            layout_of_entry[mine] = place
        return seqs, hashes, lambda i: (shares[layout_of_entry[i]][0], parts.chunk(head + i))

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
        if self._count >= MOST_LAYOUTS or length > 8 * (len(WEIGHTS) - 1):
            raise Unreadable("no two entries are alike")
        try:
            known.append(layout_of(parts.chunk(entry), memo, parts.first_field, number=self._count))
        except NewString:
            raise _NewStrings(entry) from None
        except (IndexError, ValueError) as error:
            raise Unreadable(f"not one entry ({error!r})") from None
        self._count += 1
        return known[-1], len(known) - 1

    def _category(self, checksum: int, layout: Layout, chunk: bytes, memo: dict[int, Any]) -> int:
        try:
            read = self._read.get(checksum)
            if read is None:
                read = self._read[checksum] = _deciding(layout.values(chunk))
                self._places = tuple(sorted({*self._places, *places_in(read.group), *read.places}))
            key = checksum, tuple(memo.get(place) for place in read.places)
            if key not in self._bases:
                self._bases[key] = category_of(resolved(read.asked, memo))
            # The same is asked of ten thousand tensor-parallel groups.
            group = process_group_of(resolved(read.group, memo))
            return self._categories.number_of(replace(self._bases[key], process_group=group))
        except (TypeError, IndexError, ValueError, AttributeError) as error:
            raise Unreadable(f"not one entry ({error!r})") from None


def _deciding(values: dict[str, Any]) -> Deciding:
    group = {name: value for name, value in values.items() if name in OF_GROUP}
    asked = {name: value for name, value in values.items() if name not in OF_GROUP}
    return Deciding(group=group, asked=asked, places=places_in(asked))


def _built(spliced: bytes, count: int) -> tuple[dict[str, Any], dict[int, Any]]:
    try:
        document, memo = unpickle(spliced)
    except PickleRefused as error:
        raise Unreadable(str(error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise Unreadable("no entries")
    if len(entries_of(document)) != count or len(document["entries"]) != count:
        raise Unreadable("the beginning and the end do not fit together")
    return document, memo

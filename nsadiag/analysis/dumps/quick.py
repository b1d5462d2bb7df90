"""The columns of one pickled dump, most of it read without building a single value.

The beginning (names, configuration, the first entries, with all strings) and the end go through the unpickler;
the thousands of entries in between are rows of a few layouts. Any doubt raises Unreadable, and the whole file
goes through the unpickler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.dumps.columns import Categories, GroupNames, RankColumns, columns_of
from nsadiag.analysis.dumps.layouts import Layout, NewString, Unreadable, layout_of, padded, resolved
from nsadiag.analysis.dumps.plain import entries_of, seq_of, unpickle
from nsadiag.evidence.pickles import PickleRefused

# `entries`, an empty list, a mark, an empty dict, a mark, and the name of an entry's first field, new.
BEGINNING = re.compile(
    rb"X\x07\x00\x00\x00entries(?:q.|r....)?\](?:q.|r....)?\(\}(?:q.|r....)?\(X.\x00\x00\x00[a-z_]{1,40}(q.|r....)",
    re.DOTALL,
)
FEWEST = 64  # entries: below, there is nothing to gain
MOST_LAYOUTS = 512
MOST_SHAPES = 64
WEIGHTS = np.random.default_rng(0).integers(1, 2**63, size=512, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The bytes of a dump, and where in them each entry begins; what lies before the first belongs to it."""

    data: bytes
    numbers: npt.NDArray[np.uint8]  # the same
    starts: npt.NDArray[np.int64]  # behind the name of each entry's first field
    marker: int  # length of that name, with the mark before it
    first_field: int  # its place in the memo

    def __len__(self) -> int:
        return len(self.starts)

    def chunk(self, entry: int) -> bytes:
        """From behind its first field's name to the next entry's."""
        return self.data[self.starts[entry] : self.starts[entry + 1] - self.marker]

    def rows(self, entries: npt.NDArray[np.intp], wide: int) -> npt.NDArray[np.uint8]:
        """As many bytes from the beginning of each."""
        if self.starts[entries[-1]] + wide > len(self.data):
            raise Unreadable("it ends early")
        # Every place in the bytes as an item of that width: to take some of them copies whole items.
        items = np.ndarray((len(self.data) - wide + 1,), dtype=f"V{wide}", buffer=self.data, strides=(1,))
        return items[self.starts[entries]].view(np.uint8).reshape(len(entries), wide)

    def spliced(self, head: int, tail: int) -> bytes:
        """A pickle of the entries before `head` and from `tail` on, with all that is around them."""
        return self.data[: self.starts[head] - self.marker] + self.data[self.starts[tail] - self.marker :]


def cut(data: bytes) -> Parts:
    """Raises Unreadable if this is no dump in the form that torch, and Python's own pickle, write."""
    beginning = BEGINNING.search(data)
    if beginning is None or data[:2] != b"\x80\x02":
        raise Unreadable("an unusual beginning")
    put = beginning[1]
    marker = b"(" + (b"h" if put[:1] == b"q" else b"j") + put[1:]
    numbers = np.frombuffer(data, dtype=np.uint8)
    places = np.flatnonzero(numbers[: -len(marker)] == marker[0])
    for offset, byte in enumerate(marker[1:], 1):
        places = places[numbers[places + offset] == byte]
    if len(places) < FEWEST:
        raise Unreadable("few entries")
    return Parts(
        data=data,
        numbers=numbers,
        starts=np.concatenate([[0], places + len(marker)]),
        marker=len(marker),
        first_field=int.from_bytes(put[1:], "little"),
    )


Share: TypeAlias = tuple[Layout, npt.NDArray[np.intp], npt.NDArray[np.uint8]]


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
        self._used: dict[int, tuple[int, ...]] = {}  # places in the memo, by checksum
        self._values: dict[int, dict[str, Any]] = {}  # that decide, by checksum
        self._known: dict[tuple[int, tuple[Any, ...]], int] = {}  # categories
        self._places: tuple[int, ...] = ()  # all that were ever used
        self._alike: dict[
            tuple[Any, ...], dict[int, int]
        ] = {}  # categories by checksum, in files with these strings

    def columns(self, rank: int, file: str, data: bytes) -> RankColumns:
        """Raises Unreadable where only the unpickler can tell."""
        parts = cut(data)
        head, tail = _first_guess(parts)
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
            if checksum not in self._used:
                self._used[checksum] = layout.uses(chunk)
                self._values[checksum] = layout.values(chunk)
                self._places = tuple(sorted({*self._places, *self._used[checksum]}))
            key = checksum, tuple(memo.get(place) for place in self._used[checksum])
            if key not in self._known:
                self._known[key] = self._categories.number(resolved(self._values[checksum], memo))
            return self._known[key]
        except (TypeError, IndexError, ValueError, AttributeError) as error:
            raise Unreadable(f"not one entry ({error!r})") from None


def _first_guess(parts: Parts) -> tuple[int, int]:
    """Where strings seem to be new: at the beginning, and where states change near the end."""
    numbers = parts.numbers
    places = np.flatnonzero(numbers[:-4] == ord("X"))
    # Behind it stands the length of the string: four bytes, of which the last two are 0.
    places = places[(numbers[places + 4] == 0) & (numbers[places + 3] == 0) & (numbers[places + 2] < 16)]
    entries = np.searchsorted(parts.starts, places, side="right") - 1
    last = len(parts) - 1
    early, late = entries[entries < last // 2], entries[entries >= last // 2]
    return (int(early.max()) + 1 if len(early) else 1, min(int(late.min()), last) if len(late) else last)


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

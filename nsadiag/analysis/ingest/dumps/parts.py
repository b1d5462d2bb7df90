"""A pickled dump cut into its entries, by their first field's name, without reading it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.ingest.dumps.columns import Unreadable

# `entries`, an empty list, a mark, an empty dict, a mark, and the name of an entry's first field, new.
BEGINNING = re.compile(
    rb"X\x07\x00\x00\x00entries(?:q.|r....)?\](?:q.|r....)?\(\}(?:q.|r....)?\(X.\x00\x00\x00[a-z_]{1,40}(q.|r....)",
    re.DOTALL,
)
FEWEST = 64  # entries: below, there is nothing to gain


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

    def entry(self, number: int, end: int) -> bytes:
        """The instructions that build one, of which `end` bytes are behind its first field's name."""
        return b"}" + self.data[self.starts[number] - self.marker : self.starts[number] + end]

    def rows(self, entries: npt.NDArray[np.intp], wide: int) -> npt.NDArray[np.uint8]:
        """As many bytes from the beginning of each."""
        if self.starts[entries[-1]] + wide > len(self.data):
            raise Unreadable("it ends early")
        # Every place in the bytes as an item of that width: to take some of them copies whole items.
        items = np.ndarray((len(self.data) - wide + 1,), dtype=f"V{wide}", buffer=self.data, strides=(1,))
        taken: npt.NDArray[np.uint8] = items[self.starts[entries]].view(np.uint8)
        return taken.reshape(len(entries), wide)

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


def first_guess(parts: Parts) -> tuple[int, int]:
    """Places where strings seem to be new: at the beginning, and where states change near the end."""
    numbers = parts.numbers
    places = np.flatnonzero(numbers[:-4] == ord("X"))
    # Behind it stands the length of the string: four bytes, of which the last two are 0.
    places = places[(numbers[places + 4] == 0) & (numbers[places + 3] == 0) & (numbers[places + 2] < 16)]
    entries = np.searchsorted(parts.starts, places, side="right") - 1
    last = len(parts) - 1
    early, late = entries[entries < last // 2], entries[entries >= last // 2]
    return (int(early.max()) + 1 if len(early) else 1, min(int(late.min()), last) if len(late) else last)

"""Names in events: strings in chunks of 64 bytes behind the ring of a black box, written and read.

Standard library only: this file runs inside the user's ranks.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any

# A piece of a name: the name's number, part (from 0), bytes of the whole name, text, the number again. The number is
# that of the slot of part 0, from 1; other parts may lie anywhere.
CHUNK = struct.Struct("<IHH52sI")
CHUNK_TEXT = 52
DEFAULT_CHUNKS = 32_768  # 2 MiB, about 15,000 names
CHUNKS_IN_MEMORY = 16_384  # a container has 64 MiB of /dev/shm for all ranks and all batches of their loaders
MOST_NAME_BYTES = 8192


class Names:
    """Strings seen in events, each written once behind the ring and known by number from then on.

    Each takes chunks of its own, so that nothing waits for anything: a signal handler, a finalizer or another thread
    may add names while one is being added. Two that add the same one at once get two numbers that mean the same.
    """

    def __init__(self, room: Any, begin: int, chunks: int) -> None:
        """`room`: a buffer that is all zeros from `begin` on, for that many chunks."""
        self.known: dict[str, int] = {}  # to be read alone: a look-up without a call, where that matters
        self._room, self._begin, self._chunks = room, begin, chunks
        # From there on the detail of a call, which may be another in every step, is left out: its place is needed more.
        self._taken, self._enough = 0, chunks * 3 // 4
        self._silent = False
        self.lost = 0  # names that found no room
        # next() on a count is one C call, hence atomic: a chunk is never given to two names.
        self._next = itertools.count().__next__

    def __call__(self, name: str) -> int:
        """The number of `name`; 0 once there is no room for more."""
        known = self.known.get(name)
        if known is None:
            return 0 if self._silent else self._add(name)
        return known

    def _add(self, name: str) -> int:
        if self._taken >= self._enough and name.count("\t") > 1:
            return self("\t".join(name.split("\t", 2)[:2]))
        text = name.encode("utf-8", "surrogatepass")[:MOST_NAME_BYTES]
        first = slot = self._next()
        for part, at in enumerate(range(0, len(text) or 1, CHUNK_TEXT)):
            if part:
                slot = self._next()
            if slot >= self._chunks:
                self.lost += 1
                return 0
            piece = text[at : at + CHUNK_TEXT]
            place = self._begin + slot * CHUNK.size
            CHUNK.pack_into(self._room, place, first + 1, part, len(text), piece, first + 1)
        self._taken = slot
        # Not before all of it is written: a reader never meets a number without its name.
        return self.known.setdefault(name, first + 1)

    def by_number(self) -> dict[int, str]:
        """All names known so far."""
        return {number: name for name, number in self.known.copy().items()}

    def silence(self) -> None:
        """Adds nothing from here on: two processes that number names by themselves would clash."""
        self._silent = True


def names_in(raw: bytes | memoryview, begin: int, chunks: int) -> dict[int, str]:
    """Number to name, of all names behind `begin` that are whole; garbage among them is left out."""
    usable = min(max(len(raw) - begin, 0) // CHUNK.size, chunks)
    pieces: dict[int, dict[int, bytes]] = {}
    lengths: dict[int, int] = {}
    # Most of the room is empty as a rule, and zeros are nothing to unpack.
    taken = -(-len(bytes(raw[begin : begin + usable * CHUNK.size]).rstrip(b"\0")) // CHUNK.size)
    for number, part, length, text, again in CHUNK.iter_unpack(raw[begin : begin + taken * CHUNK.size]):
        if number and number == again:
            pieces.setdefault(number, {})[part] = text
            lengths[number] = length
    found = {}
    for number, parts in pieces.items():
        needed = -(-lengths[number] // CHUNK_TEXT) or 1
        if all(part in parts for part in range(needed)):
            found[number] = _text(b"".join(parts[part] for part in range(needed))[: lengths[number]])
    return found


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode(errors="replace")

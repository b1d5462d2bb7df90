"""Objects of CPython in the memory of another process of the same version, read without its help.

Addresses are integers, sizes in bytes. Whoever reads what lies elsewhere, or what changes meanwhile, gets a LayoutError. Standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

WORD = 8
# Of objects that have lain alike since CPython 3.11.
TYPE, TYPE_NAME, BASICSIZE, BASE, TYPE_DICT = 8, 24, 32, 256, 264
DICT_KEYS, DICT_VALUES = 32, 40
KEYS_INDEX_BITS, KEYS_COUNT, KEYS_INDICES = 9, 24, 32
SET_MASK = 32
FIRST_FIELD = 16  # of a module its dict, of a function its globals, of a weak reference its object
LENGTH, STR_STATE = 16, 32
WIDTHS = {1: "latin-1", 2: "utf-16", 4: "utf-32"}
MOST_CHARACTERS, MOST_ENTRIES, MOST_BASES = 4096, 1 << 16, 16
LAST_ADDRESS = 1 << 47


class LayoutError(Exception):
    """Something does not lie where it was looked for."""


@dataclass(frozen=True)
class Memory:
    """The memory of a process, by a descriptor of its /proc/<pid>/mem. Methods raise LayoutError."""

    descriptor: int

    def read(self, address: int, size: int) -> bytes:
        try:
            found = os.pread(self.descriptor, size, address) if 0 < address < LAST_ADDRESS else b""
        except OSError:
            found = b""
        if len(found) != size:
            raise LayoutError(f"{size} bytes at {address:#x}")
        return found

    def words(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"{count}Q", self.read(address, count * WORD))

    def word(self, address: int) -> int:
        return self.words(address, 1)[0]

    def type_name(self, address: int) -> str:
        """The name of its class, with the module where that is one of C's: `_asyncio.Task`."""
        return self.c_text(self.word(self.word(address + TYPE) + TYPE_NAME))

    def c_text(self, address: int) -> str:
        found = b""
        while b"\0" not in found and len(found) < 128:
            found += self.read(address + len(found), WORD)
        return found.partition(b"\0")[0].decode(errors="replace")

    def text(self, address: int) -> str:
        """The content of a str."""
        length = self.word(address + LENGTH)
        state = struct.unpack("I", self.read(address + STR_STATE, 4))[0]
        width = state >> 2 & 7
        if length > MOST_CHARACTERS or width not in WIDTHS or self.type_name(address) != "str":
            raise LayoutError(f"no str at {address:#x}")
        is_ascii = state >> 6 & 1
        head = sys.getsizeof("") - 1 if is_ascii else sys.getsizeof("\u0100") - 4
        return self.read(address + head, length * width).decode(WIDTHS[width], errors="replace")

    def raw(self, address: int) -> bytes:
        """The content of a bytes object."""
        return self.read(address + sys.getsizeof(b"") - 1, min(self.word(address + LENGTH), MOST_ENTRIES))

    def named(self, address: int, name: str) -> int | None:
        """The value of that name in a dict."""
        for key, value in self.entries(address):
            with contextlib.suppress(LayoutError):
                if self.text(key) == name:
                    return value
        return None

    def entries(self, address: int) -> Iterator[tuple[int, int]]:
        """Keys and values of a dict that has its values to itself."""
        keys, values = self.words(address + DICT_KEYS, 2)
        index_bits, general = self.read(keys + KEYS_INDEX_BITS, 2)
        count = self.word(keys + KEYS_COUNT)
        if values or index_bits > 32 or general > 1 or count > MOST_ENTRIES:
            raise LayoutError(f"no dict at {address:#x}")
        width = 2 if general else 3  # keys that are all str need no hash beside them
        rows = self.words(keys + KEYS_INDICES + (1 << index_bits), count * width) if count else ()
        for at in range(width - 2, len(rows), width):
            if rows[at] and rows[at + 1]:
                yield rows[at], rows[at + 1]

    def members(self, address: int) -> list[int]:
        """The members of a set."""
        mask, table = self.words(address + SET_MASK, 2)
        if mask >= MOST_ENTRIES:
            raise LayoutError(f"no set at {address:#x}")
        return [key for key in self.words(table, (mask + 1) * 2)[::2] if key]

    def classes(self, instance: int) -> Iterator[int]:
        """Its class, and the first base of each."""
        found = self.word(instance + TYPE)
        for _ in range(MOST_BASES):
            if not found:
                return
            yield found
            found = self.word(found + BASE)


@contextlib.contextmanager
def memory_of(pid: int) -> Iterator[Memory]:
    """The memory of that process, to be read. Raises LayoutError where that is not allowed."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError as error:
        raise LayoutError(f"the memory of process {pid} may not be read: {error.strerror}") from None
    try:
        yield Memory(descriptor)
    finally:
        os.close(descriptor)

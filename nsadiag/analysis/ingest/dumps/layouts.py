"""The byte layout of one entry of a pickled dump: thousands of others have the same.

A layout is one entry's instructions, with the places of their arguments. An entry of the same length with the
same instructions at the same places is the same program with other numbers, so that all of them are read at
once as rows of a table. What no layout fits is left to the unpickler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.ingest.dumps.columns import DECIDING, Unreadable

# Bytes of argument behind each instruction that an entry without new strings is made of.
ARGUMENT = {
    ord(code): size
    for code, size in {
        "(": 0, "h": 1, "j": 4, "q": 1, "r": 4, "K": 1, "M": 2, "J": 4, "G": 8, "N": 0, "\x88": 0, "\x89": 0,
        "]": 0, "}": 0, ")": 0, "a": 0, "e": 0, "s": 0, "u": 0, "t": 0, "\x85": 0, "\x86": 0, "\x87": 0, "\x8a": 1,
    }.items()
}  # fmt: skip
GETS, PUTS = {ord("h"), ord("j")}, {ord("q"), ord("r")}
WHOLE = {ord("K"): False, ord("M"): False, ord("J"): True, 0x8A: True}  # whether it is signed
SEQ = ("collective_seq_id", "seq_id")
LONGEST = 512  # words of eight bytes
WEIGHTS = np.random.default_rng(0).integers(1, 2**63, size=LONGEST, dtype=np.uint64) | np.uint64(1)
Rows = npt.NDArray[np.uint8]


class NewString(Unreadable):
    """The entry defines a string that others may refer to."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A view of entries of one length, padded to a multiple of eight bytes."""

    number: int  # tells it from all others of one reader
    fixed: npt.NDArray[np.uint64]  # mask of what all of them share: instructions, and names of fields
    shared: npt.NDArray[np.uint64]  # and what stands there
    deciding: npt.NDArray[np.uint64]  # mask of the values that make the category
    gets: tuple[tuple[int, int], ...]  # where these have a place in the memo: begin and end
    names: tuple[tuple[int, str], ...]  # fields by place in the memo
    seq: tuple[int, int, bool]  # where the sequence number lies, its bytes, whether it is signed
    end: int  # where the entry ends, in front of what leads to the next

    def fits(self, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        return np.asarray(((rows & self.fixed) == self.shared).all(axis=1))

    def knows(self, memo: dict[int, Any]) -> bool:
        """Whether the memo of this file has the same names at the same places."""
        return all(memo.get(place) == name for place, name in self.names)

    def seqs(self, rows: Rows) -> npt.NDArray[np.int64]:
        begin, size, signed = self.seq
        wide = np.zeros((len(rows), 8), dtype=np.uint8)
        wide[:, :size] = rows[:, begin : begin + size]
        if signed and size < 8:
            wide[:, size:] = np.where(rows[:, begin + size - 1] & 0x80, 0xFF, 0).astype(np.uint8)[:, None]
        return wide.view("<i8")[:, 0]

    def places(self, chunk: bytes) -> set[int]:
        """Places in the memo that decide the entry's category."""
        return {int.from_bytes(chunk[begin:end], "little") for begin, end in self.gets}

    def checksums(self, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Equal for entries of one category."""
        weighted = (rows & self.deciding) * WEIGHTS[: rows.shape[1]]
        return np.asarray(weighted.sum(axis=1) ^ np.uint64(self.number))


def padded(length: int) -> int:
    return -(-length // 8) * 8


def layout_of(chunk: bytes, memo: dict[int, Any], first_field: int, *, number: int) -> Layout:
    """The layout of an entry that begins behind the name of its first field. Raises Unreadable, NewString."""
    tokens = _tokens(chunk)
    values, last = _pairs(tokens)
    pairs = [(-1, -1), *values]
    keys = [first_field, *(_index(chunk, begin) for begin, _ in pairs[2::2])]
    fixed, deciding = np.zeros((2, padded(len(chunk))), dtype=np.uint8)
    for begin, code, _ in tokens:
        fixed[begin : begin + 1 + (code == 0x8A)] = 0xFF
    spans = {}
    for place, (key_span, span) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        if place:
            fixed[key_span[0] : key_span[1]] = 0xFF
        name = memo.get(keys[place])
        if not isinstance(name, str):
            raise Unreadable("a field without a name")
        spans[name] = span
    # Numbers of groups differ from rank to rank where the group's own name and description say the same.
    older = () if "process_group" not in spans else ("pg_name", "pg_id")
    puts = np.zeros(len(fixed), dtype=bool)
    for begin, code, end in tokens:
        puts[begin:end] = code in PUTS
    for name in spans.keys() & {*DECIDING} - {*older}:
        deciding[slice(*spans[name])] = 0xFF
    deciding[puts] = 0
    row = np.frombuffer(chunk.ljust(len(fixed), b"\0"), dtype=np.uint64)
    mask = fixed.view(np.uint64)
    return Layout(
        number=number,
        fixed=mask,
        shared=row & mask,
        deciding=deciding.view(np.uint64),
        gets=tuple((b + 1, e) for b, code, e in tokens if code in GETS and deciding[b]),
        names=tuple((key, str(memo[key])) for key in keys),
        seq=_seq(chunk, spans),
        end=last,
    )


def _tokens(chunk: bytes) -> list[tuple[int, int, int]]:
    """Instructions: begin, code, end. Raises Unreadable on one that an entry without new strings has not."""
    found = []
    place = 0
    while place < len(chunk):
        code = chunk[place]
        if code == ord("X"):
            raise NewString
        if code not in ARGUMENT:
            raise Unreadable(f"instruction {code:#x}")
        end = place + 1 + ARGUMENT[code]
        if code == 0x8A and end <= len(chunk):
            end += chunk[end - 1]
        if end > len(chunk):
            raise Unreadable("an argument is cut off")
        found.append((place, code, end))
        place = end
    return found


_MARK = (-2, -2)


def _pairs(tokens: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], int]:
    """Begin and end of the first field's value, and of every name and value after it; and where the entry ends.

    What follows is the beginning of the next entry, or the change from one batch of them to the next.
    """
    stack: list[tuple[int, int]] = [_MARK]
    rest, last = list[int](), 0
    for number, (begin, code, end) in enumerate(tokens):
        if code == ord("u") and stack.count(_MARK) == 1:
            rest, last = [code for _, code, _ in tokens[number + 1 :]], end
            break
        _step(stack, begin, code, end)
    else:
        raise Unreadable("it has no end")
    if bytes(code for code in rest if code not in PUTS) not in (b"}", b"e(}"):
        raise Unreadable("something else stands between it and the next")
    if len(stack) % 2 or _MARK in stack[1:]:
        raise Unreadable("a name without a value")
    return stack[1:], last


def _step(stack: list[tuple[int, int]], begin: int, code: int, end: int) -> None:
    """One instruction, on a stack of spans."""
    sizes = {0x85: 1, 0x86: 2, 0x87: 3}
    if code == ord("("):
        stack.append(_MARK)
    elif code in PUTS:
        stack[-1] = (stack[-1][0], end)
    elif code in (ord("e"), ord("u"), ord("t")):
        mark = len(stack) - 1 - stack[::-1].index(_MARK)
        first = stack[mark + 1][0] if code == ord("t") and mark + 1 < len(stack) else begin
        del stack[mark:]
        if code == ord("t"):
            stack.append((first, end))
        else:
            stack[-1] = (stack[-1][0], end)
    elif code in (ord("a"), ord("s")):
        del stack[-1 if code == ord("a") else -2 :]
        stack[-1] = (stack[-1][0], end)
    elif code in sizes:
        first = stack[-sizes[code]][0]
        del stack[-sizes[code] :]
        stack.append((first, end))
    else:
        stack.append((begin, end))
    if not stack or stack[0] != _MARK:
        raise Unreadable("it takes more than there is")


def _index(chunk: bytes, begin: int) -> int:
    if chunk[begin] not in GETS:
        raise Unreadable("a field's name is new")
    return int.from_bytes(chunk[begin + 1 : begin + 1 + ARGUMENT[chunk[begin]]], "little")


def _seq(chunk: bytes, spans: dict[str, tuple[int, int]]) -> tuple[int, int, bool]:
    name = next((name for name in SEQ if name in spans), None)
    if name is None:
        raise Unreadable("no sequence number")
    begin, end = spans[name]
    code = chunk[begin]
    skip = 2 if code == 0x8A else 1
    if code not in WHOLE or not 1 <= end - begin - skip <= 8:
        raise Unreadable("the sequence number is no number")
    return begin + skip, end - begin - skip, WHOLE[code]

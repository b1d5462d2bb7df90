"""The text of a log as numbered lines, in bounded memory, whatever its encoding and its length."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from nsadiag.analysis.external.inputs.files import InputFile
from nsadiag.analysis.external.inputs.interest import DIGITS, INTEREST, Sieve
from nsadiag.analysis.external.inputs.packing import Content, content_of

BLOCK_BYTES = 2**20
# Of a longer log what stands at its begin and end is read line by line, and what may be of interest between them.
HEAD_BYTES, TAIL_BYTES = 2**20, 2**20
MOST_LINE_BYTES = 2**18
MOST_UPDATES = 40  # of a progress bar that rewrites its line
MOST_BYTES = 16 * 2**30  # of one log: a small file may unpack without an end
UTF_16 = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
UTF_32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\x0b\x0c\b\x1b\a"})
MOST_CONTROLS = 0.02


def encoding_of(begin: bytes) -> str:
    """utf-8 where nothing speaks for another: what is not valid in it is read as Latin-1, line by line."""
    for mark, encoding in UTF_16:
        if begin.startswith(mark):
            return encoding
    even, odd = begin[::2], begin[1::2]
    for zeros, others, encoding in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(zeros) > 8 and zeros.count(0) > 0.7 * len(zeros) and others.count(0) < 0.1 * len(others):
            return encoding
    return "utf-8"


def is_text(begin: bytes) -> bool:
    """Whether it can be read: a few zero bytes, as a file has where a disk was full or a log was rotated, are no reason not to."""
    if encoding_of(begin) != "utf-8":
        return True
    written = begin.replace(b"\0", b"")
    if not written or begin.startswith(UTF_32):
        return False
    return len(written.translate(None, CONTROLS)) >= (1 - MOST_CONTROLS) * len(written)


class Lines:
    """Lines with their numbers. `why`, after the last: for which reason there are no more of them, where the file goes on."""

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self.why = ""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Raises OSError where the file cannot be opened."""
        self.why = ""
        sieve = Sieve()
        held: deque[tuple[int, bytes]] = deque()
        behind = passed = 0
        with closing(content_of(Path(self._file.path), Path(self._file.root))) as content:
            for number, block in blocks_of(content):
                if passed < HEAD_BYTES:
                    passed += len(block)
                    yield from _whole(number, block)
                    continue
                held.append((number, block))
                behind += len(block)
                while behind - len(held[0][1]) >= TAIL_BYTES:
                    behind -= len(held[0][1])
                    yield from _sieved(*held.popleft(), sieve)
            for number, block in held:
                yield from _whole(number, block)
            self.why = content.why


def blocks_of(content: Content) -> Iterator[tuple[int, bytes]]:
    """Whole lines, of UTF-8 or of bytes of any one-byte encoding, with the number of the first."""
    rest, number = b"", 1
    for read in _in_utf_8(content):
        chunk = rest + read
        cut = chunk.rfind(b"\n") + 1
        if not cut and len(chunk) > MOST_LINE_BYTES:
            # Of a line without an end: the text is handed on, and the number stays.
            cut = chunk.rfind(b"\r") + 1 or len(chunk)
        block, rest = chunk[:cut], chunk[cut:]
        if block:
            yield number, block
            number += block.count(b"\n")
        if content.done > MOST_BYTES:
            content.why = f"larger than {MOST_BYTES >> 30} GiB: what stands before that was read"
            break
    if rest:
        yield number, rest


def rows_at(file: InputFile, numbers: Collection[int]) -> dict[int, str]:
    """The lines of these numbers. Raises OSError."""
    found: dict[int, str] = {}
    last = max(numbers, default=0)
    with closing(content_of(Path(file.path), Path(file.root))) as content:
        for first, block in blocks_of(content):
            if first > last:
                break
            if any(number in numbers for number in range(first, first + block.count(b"\n") + 1)):
                for number, text in _whole(first, block):
                    if number in numbers:
                        found[number] = text
    return found


def _in_utf_8(content: Content) -> Iterator[bytes]:
    chunk = content.read(BLOCK_BYTES)
    encoding = encoding_of(chunk[:4096])
    if encoding == "utf-8":
        yield chunk.removeprefix(codecs.BOM_UTF8)
        while chunk := content.read(BLOCK_BYTES):
            yield chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while chunk:
        yield decoder.decode(chunk).encode("utf-8", "replace").removeprefix(codecs.BOM_UTF8)
        chunk = content.read(BLOCK_BYTES)
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _whole(number: int, block: bytes) -> Iterator[tuple[int, str]]:
    """Each line of the block."""
    rows = block.split(b"\n")
    if not rows[-1]:
        rows.pop()
    for at, row in enumerate(rows):
        yield from _lines_of(number + at, row)


def _sieved(number: int, block: bytes, sieve: Sieve) -> Iterator[tuple[int, str]]:
    rows = block.split(b"\n")
    if not rows[-1]:
        rows.pop()
    for at in sieve.wanted(block, rows):
        yield from _lines_of(number + at, rows[at])


def _lines_of(number: int, row: bytes) -> Iterator[tuple[int, str]]:
    """The line, or of one that was rewritten each state; of many the last ones, and those of interest."""
    if b"\r" not in row:
        yield number, _text(row)
        return
    # Most states are alike but for their digits: each shape is looked at once.
    states, shapes = row.split(b"\r"), row.translate(None, DIGITS).split(b"\r")
    worth = {shape for shape in set(shapes) if INTEREST.search(shape)}
    written = [(state, shape) for state, shape in zip(states, shapes, strict=True) if state] or [(b"", b"")]
    last = len(written) - MOST_UPDATES
    for at, (state, shape) in enumerate(written):
        if at >= last or shape in worth:
            yield number, _text(state)


def _text(row: bytes) -> str:
    row = row[:MOST_LINE_BYTES].replace(b"\0", b"")
    try:
        return row.decode("utf-8")
    except UnicodeDecodeError:
        return row.decode("latin-1")

"""Compressed files and archives, known by their first bytes, as streams of what is in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from nsadiag.evidence.documents.files import open_evidence

Packing = Literal["gzip", "bzip2", "xz", "zstd", "zip", "tar", "7z", "rar"]
COMPRESSED = ("gzip", "bzip2", "xz", "zstd")  # one stream, without names of files
MAGIC: tuple[tuple[bytes, Packing], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),  # without a member
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
)
TAR_MAGIC_AT, TAR_MAGIC = 257, b"ustar"
HEADER_BYTES = 512
# What a stream of a file raises that is cut off, or damaged.
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile)
MISSING_ZSTD = "compressed with zstd: pip install zstandard, or unpack it with `zstd -d`"
REFUSED: dict[str, str] = {
    "7z": "a 7z archive: unpack it with `7z x`, and give the folder",
    "rar": "a rar archive: unpack it with `unrar x`, and give the folder",
}


class CannotUnpack(OSError):
    """Something that is compressed, and that nothing here can read; `strerror` says why."""

    def __init__(self, why: str) -> None:
        super().__init__(0, why)


def packing_of(begin: bytes, name: str = "") -> Packing | None:
    """The kind of packing by the first bytes; None of a file that is not packed. The oldest tars are known by their names alone."""
    for magic, packing in MAGIC:
        if begin.startswith(magic):
            return packing
    old = name.endswith(".tar") and len(begin) >= HEADER_BYTES
    return "tar" if begin[TAR_MAGIC_AT:].startswith(TAR_MAGIC) or old else None


def unpacked(file: IO[bytes], packing: Packing) -> IO[bytes]:
    """The stream of what one compressed file holds. Raises CannotUnpack."""
    if packing == "zstd":
        return _zstd(file)
    buffered = io.BufferedReader(cast(io.RawIOBase, file))
    if packing == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
    return cast(IO[bytes], bz2.BZ2File(buffered) if packing == "bzip2" else lzma.LZMAFile(buffered))


def _zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise CannotUnpack(MISSING_ZSTD) from None
    reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return reader


@dataclass
class Content:
    """The content of a file, unpacked where it is one compressed file, from its beginning; a damaged one ends early."""

    file: IO[bytes]
    why: str = ""  # it ended early
    done: int = 0

    def read(self, most: int) -> bytes:
        """Up to so many bytes, none at the end. One step of the unpacking at a time: what came before a cut is not lost."""
        read: Callable[[int], bytes] = getattr(self.file, "read1", self.file.read)
        try:
            got = read(most)
        except (*DAMAGED, OSError) as error:
            self.why = ended_early(error)
            return b""
        self.done += len(got)
        return got

    def close(self) -> None:
        self.file.close()


def content_of(path: Path, root: Path) -> Content:
    """Raises OSError, CannotUnpack of those."""
    file = open_evidence(path, root)
    try:
        packing = packing_of(file.read(HEADER_BYTES))
        file.seek(0)
        if packing in COMPRESSED:
            return Content(unpacked(file, packing))
    except BaseException:
        file.close()
        raise
    return Content(file)


def is_compressed(path: Path, root: Path) -> bool:
    """Whether it is one compressed file. Raises OSError."""
    with open_evidence(path, root) as file:
        return packing_of(file.read(HEADER_BYTES)) in COMPRESSED


def ended_early(error: BaseException) -> str:
    """The reason for which a stream ended before its end."""
    if isinstance(error, EOFError) or "truncated" in str(error).lower() or "unexpected end" in str(error):
        return "cut off: what stands before the cut was read"
    if isinstance(error, DAMAGED) or not getattr(error, "strerror", None):
        return f"damaged ({str(error)[:80] or type(error).__name__}): what stands before that was read"
    return str(getattr(error, "strerror", ""))

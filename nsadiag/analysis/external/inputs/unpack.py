"""Archives, unpacked into a private folder: regular files alone, below it, so many and so much of them at most."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nsadiag.analysis.external.inputs.packing import (
    COMPRESSED,
    DAMAGED,
    HEADER_BYTES,
    REFUSED,
    CannotUnpack,
    Content,
    ended_early,
    packing_of,
    unpacked,
)
from nsadiag.evidence.documents.files import open_evidence

GIB = 2**30
MOST_BYTES = 8 * GIB  # of all members of everything that one command is given
MOST_MEMBERS = 100_000
MOST_HEADER_BYTES = 2**20  # of one member's name and attributes
CHUNK_BYTES = 2**20
TOO_MUCH = f"not unpacked: the archives hold more than {MOST_BYTES // GIB} GiB"
TOO_MANY = f"not unpacked: the archives hold more than {MOST_MEMBERS:,} files"
LINK = "a link or device in an archive, which is not unpacked"
ENCRYPTED = "encrypted: unpack it with its password, and give the folder"
OUTSIDE = "not unpacked: its name leads out of the archive"
CHECKPOINT = "a file of torch.save: a checkpoint, no evidence"
NO_DIRECTORY = "no whole zip archive: its directory stands at the end, and is cut off or damaged"
UNKNOWN = 0.0  # a zip has times without their zone
LONGEST_NAME = 200  # bytes of one part of a path


@dataclass
class Budget:
    """The amount that may still be unpacked."""

    bytes: int = MOST_BYTES
    members: int = MOST_MEMBERS


@dataclass
class Unpacked:
    """One archive's members in a folder, and those that were left out, with the reason."""

    folder: Path
    budget: Budget
    refused: list[tuple[str, str]] = field(default_factory=list)  # by name; none of the archive itself

    def put(self, name: str, content: Content, modified_s: float) -> None:
        """Write one member; of one that ends early what there is. For how long a call was pending, the time of its dump tells."""
        place = self._place(name)
        if place is None:
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                if self._copy(content, file):
                    self.refused.append((name, TOO_MUCH))
            with contextlib.suppress(OSError, OverflowError, ValueError):
                os.utime(place, (modified_s, modified_s))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            self.refused.append((name, f"not unpacked: {error.strerror}"))
        if content.why:
            self.refused.append((name, content.why))

    def _place(self, name: str) -> Path | None:
        parts = [part for part in PurePosixPath(name).parts if part != "."]
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name:
            self.refused.append((name, OUTSIDE))
            return None
        if any(len(part.encode(errors="surrogateescape")) > LONGEST_NAME for part in parts):
            self.refused.append((f"{name[:40]}...", "not unpacked: no file can have so long a name"))
            return None
        if not self.budget.members:
            self.refused.append((name, TOO_MANY))
            return None
        self.budget.members -= 1
        return self.folder.joinpath(*parts)

    def _copy(self, content: Content, file: IO[bytes]) -> bool:
        """Whether it was too much."""
        while chunk := content.read(CHUNK_BYTES):
            if len(chunk) > self.budget.bytes:
                file.truncate(0)
                return True
            self.budget.bytes -= len(chunk)
            file.write(chunk)
        return False


def is_archive(path: Path, root: Path) -> bool:
    """Whether it holds files with names of their own. Raises OSError."""
    file = open_evidence(path, root)
    with file:
        begin = file.read(HEADER_BYTES)
        packing = packing_of(begin, path.name)
        if packing in COMPRESSED:
            file.seek(0)
            with_names = Content(unpacked(file, packing)).read(HEADER_BYTES)
            return packing_of(with_names, path.stem) == "tar"
        return packing is not None


def unpack(path: Path, root: Path, folder: Path, budget: Budget) -> Unpacked:
    """All that can be read of an archive; the reasons for the rest. Raises OSError where nothing can."""
    found = Unpacked(folder=folder, budget=budget)
    with open_evidence(path, root) as file:
        packing = packing_of(file.read(HEADER_BYTES), path.name)
        if packing in REFUSED:
            raise CannotUnpack(REFUSED[packing])
        file.seek(0)
        if packing == "zip":
            _unpack_zip(file, found)
        else:
            _unpack_tar(unpacked(file, packing) if packing != "tar" else file, found)  # type: ignore[arg-type]
    return found


class _Member(tarfile.TarInfo):
    """A member whose name and attributes are of a size that names have: tarfile holds them in memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type not in tarfile.SUPPORTED_TYPES or self.type in tarfile.REGULAR_TYPES:
            return super()._proc_member(archive)  # type: ignore[misc]
        if self.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _unpack_tar(stream: IO[bytes], found: Unpacked) -> None:
    try:
        with tarfile.TarFile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in _members(archive):
                if member.isreg():
                    content = archive.extractfile(member)
                    assert content is not None  # of a regular file
                    found.put(member.name, Content(content), member.mtime)
                elif not member.isdir():
                    found.refused.append((member.name, LINK))
    except DAMAGED as error:
        found.refused.append(("", ended_early(error)))  # of the archive itself


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """One after the other: the archive keeps none of them."""
    while (member := archive.next()) is not None:
        yield member
        archive.members.clear()  # type: ignore[attr-defined]


def _unpack_zip(file: IO[bytes], found: Unpacked) -> None:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise CannotUnpack(NO_DIRECTORY) from None
    with archive:
        if any(member.filename.endswith("/data.pkl") for member in archive.infolist()):
            raise CannotUnpack(CHECKPOINT)
        for member in archive.infolist():
            if member.is_dir():
                continue
            if member.flag_bits & 1 or stat.S_ISLNK(member.external_attr >> 16):
                found.refused.append((member.filename, ENCRYPTED if member.flag_bits & 1 else LINK))
                continue
            try:
                with archive.open(member) as content:
                    found.put(member.filename, Content(content), UNKNOWN)
            except (*DAMAGED, NotImplementedError, ValueError) as error:
                found.refused.append((member.filename, ended_early(error)))

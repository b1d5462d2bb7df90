"""Files that come in from other nodes: kept beside until they are whole, and never elsewhere than where they belong.

A file is known by its path, its size and its digest; what had come before an interruption is not sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nsadiag.evidence.documents.files import open_evidence
from nsadiag.evidence.layout import RunDir, make_private_dir, open_private, read_json

CHUNK_BYTES = 192 * 1024
MOST_FILE = 4 * 2**30
MOST_NODE = 16 * 2**30  # of one node in one run
MOST_FILES = 200_000
MOST_PARTS = 12
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=+@-]{0,200}")
DIGEST = re.compile(r"[0-9a-f]{64}")
ARRIVING = ".arriving"


class NotTaken(Exception):
    """The reason for refusing a file."""


@dataclass(kw_only=True)
class _Open:
    """The file that a node sends at the moment."""

    id: int
    target: Path
    part: Path
    size: int
    sha256: str
    digest: Any  # of what has come so far


@dataclass(kw_only=True)
class _Sender:
    """A sending node: the bytes and files received from it so far, and the file in progress."""

    name: str
    bytes: int = 0
    files: int = 0
    open: _Open | None = None


class Arrivals:
    """Takes frames of files, for the hub; called in its thread alone."""

    def __init__(self) -> None:
        self._root = Path()
        self._senders: dict[int, _Sender] = {}

    def open(self, root: Path) -> None:
        """From here on there is a place for them."""
        self._root = root

    def admit(self, node_rank: int, name: str) -> None:
        """From here on that node may send what lies under its name."""
        self._senders[node_rank] = _Sender(name=name)

    def take(self, node_rank: int, note: Mapping[str, Any], blob: bytes) -> dict[str, Any] | None:
        """The answer to a frame; None where the sender waits for none. Never raises."""
        sender = self._senders.get(node_rank)
        try:
            if sender is None:
                raise NotTaken("this node sends nothing")
            return self._begin(sender, note) if note["kind"] == "file" else self._add(sender, note, blob)
        except NotTaken as error:
            return {"kind": "file", "id": note.get("id"), "no": str(error)}
        except OSError as error:
            return {"kind": "file", "id": note.get("id"), "no": f"node 0 cannot write it: {error.strerror}"}
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error):
            return {"kind": "file", "id": note.get("id"), "no": "not understood"}

    def close(self) -> None:
        """Discard incomplete files: they are no evidence."""
        if self._senders:
            shutil.rmtree(self._root / ARRIVING, ignore_errors=True)

    def _begin(self, sender: _Sender, note: Mapping[str, Any]) -> dict[str, Any]:
        size, digest, number = int(note["size"]), str(note["sha256"]), int(note["id"])
        target = self._target(sender, str(note["cell"]), str(note["path"]))
        if not DIGEST.fullmatch(digest) or size < 0:
            raise NotTaken("not understood")
        if size > MOST_FILE:
            raise NotTaken(f"{size} bytes are too many for one file")
        if _is(target, size, digest):
            return {"kind": "file", "id": number, "kept": True}
        sender.bytes, sender.files = sender.bytes + size, sender.files + 1
        if sender.bytes > MOST_NODE or sender.files > MOST_FILES:
            raise NotTaken("the node has sent too much")
        part = make_private_dir(self._root / ARRIVING / str(sender.name)) / digest
        offset = part.stat().st_size if part.exists() else 0
        if offset >= size:
            part.unlink(missing_ok=True)
            offset = 0
        so_far = _hashed(part, offset)
        sender.open = _Open(id=number, target=target, part=part, size=size, sha256=digest, digest=so_far)
        if not size:
            return self._finish(sender, sender.open)
        return {"kind": "file", "id": number, "offset": offset}

    def _add(self, sender: _Sender, note: Mapping[str, Any], blob: bytes) -> dict[str, Any] | None:
        current = sender.open
        if current is None or int(note["id"]) != current.id:
            return None  # of a file that was given up
        data = _unpacked(blob) if note["packed"] else blob
        at = int(note["at"])
        with open_private(current.part, "ab") as file:
            if file.tell() != at or at + len(data) > current.size:
                sender.open = None
                raise NotTaken("not the next part of it")
            file.write(data)
        current.digest.update(data)
        return self._finish(sender, current) if at + len(data) == current.size else None

    def _finish(self, sender: _Sender, current: _Open) -> dict[str, Any]:
        sender.open = None
        if current.size == 0:
            open_private(current.part, "wb").close()
        if current.digest.hexdigest() != current.sha256:
            current.part.unlink()
            return {"kind": "file", "id": current.id, "again": True}
        make_private_dir(current.target.parent)
        current.part.replace(current.target)
        return {"kind": "file", "id": current.id, "kept": True}

    def _target(self, sender: _Sender, cell: str, path: str) -> Path:
        """The path of an arriving file: in a rank's folder, or the node's own, of an existing cell. Raises NotTaken."""
        parts = [*([] if cell == "." else PurePosixPath(cell).parts), *PurePosixPath(path).parts]
        if len(parts) > MOST_PARTS or not all(PART.fullmatch(part) for part in parts):
            raise NotTaken("no path of a run directory")
        where = PurePosixPath(path).parts
        directory = self._root if cell == "." else self._root / cell
        if not directory.is_dir() or (cell != "." and parts[0] != "cells"):
            raise NotTaken("no cell of this run")
        if len(where) >= 3 and where[0] == "nodes" and where[1] == sender.name:
            return self._within(directory.joinpath(*where))
        if len(where) >= 3 and where[0] == "ranks" and where[1].isdecimal() and len(where[1]) == 5:
            self._check_owner(RunDir(path=directory), int(where[1]), sender.name)
            return self._within(directory.joinpath(*where))
        raise NotTaken("no place for the files of a node")

    def _within(self, target: Path) -> Path:
        """A link that the job has put there leads nobody out."""
        if not target.parent.resolve().is_relative_to(self._root.resolve()) or target.is_symlink():
            raise NotTaken("a link stands in its place")
        return target

    def _check_owner(self, run: RunDir, rank: int, name: str) -> None:
        host = read_json(run.rank(rank).meta, {}).get("host")
        if host not in (None, name):
            raise NotTaken(f"rank {rank} is on {host} as well")


def _unpacked(blob: bytes) -> bytes:
    """Raises zlib.error, and ValueError where there is more in it than a part may have."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(blob, CHUNK_BYTES)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("too much in it")
    return data


def _is(path: Path, size: int, digest: str) -> bool:
    with contextlib.suppress(OSError):
        with open_evidence(path) as file:
            return os.fstat(file.fileno()).st_size == size and digest_of(file, size) == digest
    return False


def _hashed(path: Path, size: int) -> Any:
    if not size:
        return hashlib.sha256()
    with open_evidence(path) as file:
        return hash_of(file, size)


def hash_of(file: Any, size: int) -> Any:
    """SHA-256 of the first `size` bytes, to which more may be added."""
    found, left = hashlib.sha256(), size
    while left and (data := file.read(min(left, 2**20))):
        found.update(data)
        left -= len(data)
    return found


def digest_of(file: Any, size: int) -> str:
    return str(hash_of(file, size).hexdigest())

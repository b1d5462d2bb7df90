"""Sends a node's evidence to node 0, file by file, once it is safe on the node's own disk.

A file that came before is not sent again, one that was begun is gone on with, and the network is never filled: the job
may still be running, or have stopped because of it.
"""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from nsadiag.cluster.arrivals import CHUNK_BYTES, PART, digest_of
from nsadiag.deadlines.deadline import Deadline
from nsadiag.evidence.documents.files import open_evidence

RATE_BYTES = 64 * 2**20  # a second
IN_MEMORY = 8 * 2**20  # a file that may change under our hands, such as a ring, is read once
ATTEMPTS = 3
REDUCED = (".json", ".gz")  # digests, ends, the watch: no logs


class Channel(Protocol):
    """The methods of the link that shipping needs."""

    def push(self, note: dict[str, Any], blob: bytes, deadline: Deadline, /) -> None: ...
    def answer(self, deadline: Deadline, /) -> dict[str, Any]: ...
    def forget_answers(self) -> None: ...


@dataclass(kw_only=True)
class Shipped:
    """The result of shipping a node's files."""

    files: int = 0
    bytes: int = 0
    left: list[str] = field(default_factory=list)  # what did not go, and why


def to_ship(run: Path, node: str, only: frozenset[int] | None = None) -> Iterator[tuple[Path, str]]:
    """The node's files, small ones first, and where they belong on node 0.

    `only`: of very many ranks, those whose evidence is wanted; where none is, what the node says of all of them.
    """
    found = []
    for folder, prefix in (
        ("ranks", "ranks"),
        (f"nodes/{node}", f"nodes/{node}"),
        ("sources", f"nodes/{node}/sources"),
    ):
        for path in sorted((run / folder).rglob("*")):
            name = path.relative_to(run / folder).as_posix()
            if only is not None and not _is_wanted(folder, Path(name), only):
                continue
            if path.is_file() and not path.is_symlink() and all(PART.fullmatch(p) for p in Path(name).parts):
                found.append((path.stat().st_size, path, f"{prefix}/{name}"))
    for _, path, name in sorted(found):
        yield path, name


def _is_wanted(folder: str, name: Path, only: frozenset[int]) -> bool:
    if folder == "ranks":
        return name.parts[0].isdecimal() and int(name.parts[0]) in only
    return bool(only) or (folder != "sources" and len(name.parts) == 1 and name.suffix in REDUCED)


class Shipment:
    """Sends what lies in one directory after the other; can be called again after Lost, and goes on."""

    def __init__(self, channel: Channel, node: str, deadline: Deadline) -> None:
        """Leave what has not gone at the deadline: node 0 waits no longer for it."""
        self._channel, self._node, self._deadline = channel, node, deadline
        self._number = 0
        self._began, self._sent = time.monotonic(), 0

    def send(self, run: Path, cell: str, only: frozenset[int] | None = None) -> Shipped:
        """All files of the directory, or those of `only`. Raises Lost."""
        late = f"not sent within {self._deadline.seconds:g} s"
        self._channel.forget_answers()
        done = Shipped()
        for path, name in to_ship(run, self._node, only):
            try:
                why = self._file(path, cell, name, done)
            except TimeoutError:
                why = late
            except OSError as error:
                why = error.strerror or "cannot be read"
            if why:
                done.left.append(f"{name}: {why}")
        return done

    def _file(self, path: Path, cell: str, name: str, done: Shipped) -> str | None:
        """The reason for a file that was not sent; None if it was."""
        for _ in range(ATTEMPTS):
            self._deadline.left()
            with open_evidence(path) as opened:
                size = path.stat().st_size
                file: IO[bytes] = io.BytesIO(opened.read(size)) if size <= IN_MEMORY else opened
                size = min(size, len(file.getbuffer())) if isinstance(file, io.BytesIO) else size
                answer = self._one(file, size, cell, name)
            if "no" in answer:
                return str(answer["no"])
            if answer.get("kept"):
                done.files, done.bytes = done.files + 1, done.bytes + size
                return None
        return "it changed while it was sent"

    def _one(self, file: IO[bytes], size: int, cell: str, name: str) -> dict[str, Any]:
        self._number += 1
        digest = digest_of(file, size)
        about = {
            "kind": "file",
            "id": self._number,
            "cell": cell,
            "path": name,
            "size": size,
            "sha256": digest,
        }
        self._channel.push(about, b"", self._deadline)
        answer = self._answer()
        if "offset" not in answer:
            return answer
        at = int(answer["offset"])
        file.seek(at)
        while at < size:
            data = file.read(min(CHUNK_BYTES, size - at))
            if not data:
                return {"again": True}  # it has become shorter
            packed = zlib.compress(data, 1)
            smaller = len(packed) < len(data)
            note = {"kind": "chunk", "id": self._number, "at": at, "packed": smaller}
            self._channel.push(note, packed if smaller else data, self._deadline)
            at += len(data)
            self._slow_down(len(packed) if smaller else len(data))
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """To the file that is being sent; those to earlier ones were given up on."""
        while (answer := self._channel.answer(self._deadline)).get("id") != self._number:
            pass
        return answer

    def _slow_down(self, count: int) -> None:
        self._sent += count
        ahead_s = self._sent / RATE_BYTES - (time.monotonic() - self._began)
        if ahead_s > 0:
            time.sleep(ahead_s)
        elif ahead_s < -1.0:
            # An hour without a file is no credit for a burst.
            self._began, self._sent = time.monotonic(), 0

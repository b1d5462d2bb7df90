"""Reads the header of a black box, and the names behind its ring; standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.evidence.documents.files import read_evidence
from nsadiag.evidence.layout import read_json_lines
from nsadiag.evidence.ring.blackbox import (
    CHUNKS_AT,
    CHUNKS_HEADER,
    COUNTER,
    COUNTERS_AT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES,
    Counter,
)
from nsadiag.evidence.ring.names import CHUNK, names_in

MAGIC_BEFORE = b"NSADBOX1"  # its names are in names.jsonl beside it


@dataclass(frozen=True, kw_only=True)
class Header:
    """The writer of the ring, and the relation of its monotonic clock to wall time."""

    pid: int
    rank: int
    world_size: int
    capacity: int
    host: str
    monotonic_ns: int
    wall_ns: int
    counters: dict[Counter, int] = field(default_factory=dict)
    chunks: int | None = 0  # for names; None where they are in a file of their own


def read_header(raw: bytes) -> Header | None:
    """The header, or None where the bytes are not one."""
    if len(raw) < HEADER.size:
        return None
    magic, header_bytes, record_bytes, capacity, pid, rank, world, mono, wall, host = HEADER.unpack_from(raw)
    if (
        magic not in (MAGIC, MAGIC_BEFORE)
        or header_bytes != HEADER_BYTES
        or record_bytes != RECORD_BYTES
        or capacity < 1
    ):
        return None
    name = host.split(b"\0")[0].decode(errors="replace")
    return Header(
        pid=pid,
        rank=rank,
        world_size=world,
        capacity=capacity,
        host=name,
        monotonic_ns=mono,
        wall_ns=wall,
        counters=_counters(raw),
        chunks=_chunks(raw) if magic == MAGIC else None,
    )


def _counters(raw: bytes) -> dict[Counter, int]:
    places = {counter: COUNTERS_AT + counter * COUNTER.size for counter in Counter}
    return {c: COUNTER.unpack_from(raw, at)[0] for c, at in places.items() if len(raw) >= at + COUNTER.size}


def _chunks(raw: bytes) -> int:
    if len(raw) < CHUNKS_AT + CHUNKS_HEADER.size:
        return 0
    size, chunks = CHUNKS_HEADER.unpack_from(raw, CHUNKS_AT)
    return int(chunks) if size == CHUNK.size else 0


def read_names(path: Path) -> dict[int, str]:
    """Number to name, of the black box in that file; empty where there is none."""
    try:
        raw = read_evidence(path)
    except OSError:
        return {}
    header = read_header(raw)
    return names_of(path, raw, header) if header is not None else {}


def names_of(path: Path, raw: bytes, header: Header) -> dict[int, str]:
    """The same of one that has been read already."""
    if header.chunks is None:
        return _names_beside(path)
    return names_in(raw, HEADER_BYTES + header.capacity * RECORD_BYTES, header.chunks)


def _names_beside(path: Path) -> dict[int, str]:
    """Those of a recording of the first version, which had them in a file of their own."""
    return {row["id"]: row["name"] for row in read_json_lines(path.with_name("names.jsonl"))}

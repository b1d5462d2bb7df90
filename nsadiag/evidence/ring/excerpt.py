"""A black box made smaller: its newest events, and the names that it has, in a file that every reader takes for a whole one."""

from __future__ import annotations

from nsadiag.evidence.ring.blackbox import (
    CHUNKS_AT,
    CHUNKS_HEADER,
    HEADER,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
)
from nsadiag.evidence.ring.header import read_header
from nsadiag.evidence.ring.names import CHUNK


def excerpt(raw: bytes, events: int) -> bytes:
    """At most so many events of `raw`, at least one. Raises ValueError where it is no recorder file."""
    header = read_header(raw)
    if header is None or header.chunks is None:
        raise ValueError("is not a recorder file")
    names_at = HEADER_BYTES + header.capacity * RECORD_BYTES
    records = [
        raw[at : at + RECORD_BYTES]
        for at in range(HEADER_BYTES, min(names_at, len(raw) - RECORD_BYTES + 1), RECORD_BYTES)
    ]
    numbered = sorted((RECORD.unpack(each)[0], each) for each in records if any(each[:8]))
    kept = numbered[-max(events, 1) :]
    capacity = max(len(kept), 1)
    ring = bytearray(capacity * RECORD_BYTES)
    for number, record in kept:
        slot = (number - 1) % capacity
        ring[slot * RECORD_BYTES : (slot + 1) * RECORD_BYTES] = record
    names = raw[names_at : names_at + header.chunks * CHUNK.size].rstrip(b"\0")
    chunks = -(-len(names) // CHUNK.size)
    made = bytearray(raw[:HEADER_BYTES])
    fields = list(HEADER.unpack_from(raw))
    fields[3] = capacity
    HEADER.pack_into(made, 0, *fields)
    CHUNKS_HEADER.pack_into(made, CHUNKS_AT, CHUNK.size, chunks)
    return bytes(made) + bytes(ring) + names.ljust(chunks * CHUNK.size, b"\0")

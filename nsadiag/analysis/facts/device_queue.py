"""The device's queue: under NCCL a rank enqueues a collective and continues, until it needs a result from the GPU."""

from __future__ import annotations

import math
import re
from typing import Literal

from nsadiag.analysis.facts.collectives import Transfer
from nsadiag.analysis.facts.groups import Groups, newest_dump
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.recorder import TRANSFER, Dump, Entry, is_nccl, members, pending

# Native frames of a host that waits for its GPU, or for room in its queue: CUDA's, and torch's around them.
WAITS = re.compile(r"^(cu[A-Z]\w+|cuda[A-Z]\w+|at::native::_local_scalar_dense_cuda|c10::cuda::)")


def first_unfinished(rank: RankEvidence) -> Entry | None:
    """The call that NCCL has at the head of the rank's queue: all that was issued after it stands behind it."""
    found = [entry for entry in pending(newest_dump(rank)) if is_nccl(entry)]
    return found[0] if found else None


def computes_before(rank: RankEvidence) -> bool:
    """Whether the device has not come to that call yet: it is at a kernel which was launched before.

    Known only where NCCL times its calls (TORCH_NCCL_ENABLE_TIMING): elsewhere no call is ever `started`.
    """
    first, entries = first_unfinished(rank), newest_dump(rank).get("entries", [])
    timed = any(entry.get("time_discovered_started_ns") for entry in entries)
    return first is not None and timed and first.get("state") == "scheduled"


def first_call(groups: Groups, rank: RankEvidence) -> tuple[str, int] | None:
    """Group and number of the collective in which the rank's queue stands; None if it stands in none, or in a transfer."""
    first = first_unfinished(rank)
    if first is None or computes_before(rank) or TRANSFER.search(str(first["profiling_name"])):
        return None
    return groups.label_of(rank.rank, first), int(first["collective_seq_id"])


def issued_s(cell: CellEvidence, rank: RankEvidence) -> float:
    """The time at which the rank issued what its queue stands in, on the clock of the events: what it did since, it did ahead; else infinity."""
    first, header = first_unfinished(rank), rank.recording.header
    created_ns = first.get("time_created_ns") if first else None
    if header is None or not created_ns:
        return math.inf
    mono_ns = created_ns - header.wall_ns + header.monotonic_ns
    return (mono_ns - cell.started_mono_ns) / 1e9


def holds_up(
    rank: RankEvidence, native: list[str], *, running: bool, same: bool
) -> Literal["collective", "transfer"] | None:
    """`collective` or `transfer` if the main thread waits for the device, and the device for that; None if not.

    Without native stacks a thread that runs, and stands still, is taken to wait so.
    """
    first = first_unfinished(rank)
    waits = any(WAITS.search(name) for name in native) if native else running and same
    if first is None or not waits or computes_before(rank):
        return None
    return "transfer" if TRANSFER.search(str(first["profiling_name"])) else "collective"


def cut_off(rank: RankEvidence, rows: list[Transfer]) -> list[Transfer]:
    """The rank's transfers as far as the device has come: the one that it is in has no end, and those behind it are left out.

    Sends and receives of the recording and those of NCCL's recorder are matched from the newest backwards.
    """
    dump, first = newest_dump(rank), first_unfinished(rank)
    if first is None or not TRANSFER.search(str(first["profiling_name"])):
        return rows
    entries = [e for e in dump["entries"] if TRANSFER.search(str(e["profiling_name"]))]
    stands = len(rows)
    for end in reversed([end_of(dump, entry) for entry in entries[entries.index(first) :]]):
        stands = next((n for n in reversed(range(stands)) if _is_call(rows[n], end)), -1)
        if stands < 0:
            return rows
    return [*rows[:stands], rows[stands]._replace(end_s=None)]


def _is_call(row: Transfer, end: tuple[str, int]) -> bool:
    return not row.op.endswith(".wait") and (row.direction, row.peer) == end


def end_of(dump: Dump, entry: Entry) -> tuple[str, int]:
    """Direction, and the peer as a global rank."""
    found = TRANSFER.search(str(entry["profiling_name"]))
    assert found is not None
    group = sorted(members(dump, str(entry["process_group"][0])) or ())
    peer = int(found[3])
    return "to" if found[1] == "send" else "from", group[peer] if peer < len(group) else peer

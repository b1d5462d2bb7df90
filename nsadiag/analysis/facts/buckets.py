"""DDP's buckets: whether a rank waits for one to be reduced."""

from __future__ import annotations

import math

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table


def is_reducing(cell: CellEvidence, rank: RankEvidence, events: Table, calls: Table) -> bool:
    """Whether a bucket that was full in the rank's last backward is not reduced yet: an all_reduce of its size is not over.

    `events` and `calls` are the rank's own.
    """
    begins = events.loc[(events.kind == Kind.BACKWARD) & (events.phase == Phase.BEGIN), "t_s"]
    header = rank.recording.header
    if begins.empty or header is None:
        return False
    begun_ns = float(begins.iloc[-1]) * 1e9 + cell.started_mono_ns - header.monotonic_ns + header.wall_ns
    pending = calls[(calls.wall_ns >= begun_ns) & calls.pending.astype(bool)]
    reductions = pending[pending.op.str.contains("all_?reduce")]
    # As first assigned, or as rebuilt: which are in force, the rank itself may have had to guess.
    buckets = {b.elements for model in rank.ddp for b in (*model.buckets, *model.rebuilt_buckets)}
    return any(elements_of(sizes) in buckets for sizes in reductions.input_sizes)


def elements_of(sizes: list[list[int]] | None) -> int:
    """The number of elements in tensors of these sizes, all together."""
    return sum(math.prod(map(int, size)) for size in sizes or [])

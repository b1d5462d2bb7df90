"""DDP's buckets in a rank's last backward: which were full, which gradients are missing, which were reduced.

Joined from ddp.json (who is in which bucket), the gradients that arrived, and the flight recorder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.training import Bucket, WrappedModel
from nsadiag.evidence.ring.blackbox import Kind, Phase


class BucketState(NamedTuple):
    """One bucket of a rank. What was not recorded is None, never "no"."""

    rank: int
    model: int  # which of the models in ddp.json
    bucket: int  # in order of reduction
    elements: int
    parameters: list[str]
    # those whose gradient has not arrived; with find_unused_parameters they may just be unused
    missing: list[str] | None
    ready_s: float | None  # when the last of its gradients arrived
    issued: bool | None  # whether its all_reduce was
    reduced: bool | None  # and is over


BUCKET_COLUMNS = [*BucketState._fields]


def buckets_of(
    cell: CellEvidence, rank: RankEvidence, events: pd.DataFrame, calls: pd.DataFrame | None
) -> Iterator[BucketState]:
    """`events` and `calls` are the rank's own, `calls` None where there is no dump."""
    begins = events.loc[(events.kind == Kind.BACKWARD) & (events.phase == Phase.BEGIN), "t_s"]
    if begins.empty:
        return
    begin = float(begins.iloc[-1])
    arrivals = _arrivals(events, begin)
    reductions = None if calls is None else _reductions(cell, rank, calls, begin)
    for index, model in enumerate(rank.ddp):
        names = [parameter.full_name for parameter in model.parameters]
        for bucket in _in_force(cell, rank, index, events, begin):
            members = [names[i] for i in bucket.parameters if i < len(names)]
            missing, ready_s = _filled(_looked_at(members, rank.recorded_gradients), arrivals)
            issued, reduced = _reduced(bucket.elements, reductions)
            yield BucketState(
                rank=rank.rank,
                model=index,
                bucket=bucket.index,
                elements=bucket.elements,
                parameters=members,
                missing=missing,
                ready_s=ready_s,
                issued=issued,
                reduced=reduced,
            )


def _in_force(
    cell: CellEvidence, rank: RankEvidence, index: int, events: pd.DataFrame, begin: float
) -> tuple[Bucket, ...]:
    """As first assigned, or as rebuilt, where that was before this backward; an event that the ring lost was."""
    model = rank.ddp[index]
    rebuilt = events.loc[
        (events.kind == Kind.BUCKET) & (events.name == "rebuilt") & (events.b == index), "t_s"
    ]
    if not model.rebuilt_buckets or (len(rebuilt) and float(rebuilt.iloc[-1]) > begin):
        return model.buckets
    return _authority(cell, rank, index).rebuilt_buckets


def _authority(cell: CellEvidence, rank: RankEvidence, index: int) -> WrappedModel:
    """All ranks use the order of the group's first one; DDP's own log names it on any of them."""
    own = rank.ddp[index]
    if own.rebuilt_says == "log":
        return own
    same = {r.rank: r.ddp[index] for r in cell.ranks if len(r.ddp) > index and r.ddp[index].rebuilt_buckets}
    logged = [model for model in same.values() if model.rebuilt_says == "log"]
    return logged[0] if logged else same.get(own.ranks[0] if own.ranks else 0, own)


def _arrivals(events: pd.DataFrame, begin: float) -> dict[str, float] | None:
    """Arrival time of each parameter's gradient; None where this rank's gradients are not recorded at all."""
    gradients = events[events.kind == Kind.GRADIENT]
    if gradients.empty:
        return None
    since = gradients[gradients.t_s >= begin]
    return dict(zip(since.name, since.t_s.astype(float), strict=True))


def _looked_at(members: list[str], recorded: list[str] | None) -> list[str]:
    """Those whose gradients are recorded: where steps are short, not all of them are."""
    if recorded is None:
        return members
    return [m for m in members if any(name == m or name.endswith("." + m) for name in recorded)]


def _filled(members: list[str], arrivals: dict[str, float] | None) -> tuple[list[str] | None, float | None]:
    """The parameters without a gradient, and when the last gradient arrived."""
    if arrivals is None or not members:
        return None, None
    times = {name: _time_of(name, arrivals) for name in members}
    missing = [name for name, time in times.items() if time is None]
    arrived = [time for time in times.values() if time is not None]
    return missing, max(arrived) if arrived and not missing else None


def _time_of(name: str, arrivals: dict[str, float]) -> float | None:
    """A gradient goes by its name in the whole model, of which DDP may hold a part."""
    if name in arrivals:
        return arrivals[name]
    longer = [time for other, time in arrivals.items() if other.endswith("." + name)]
    return longer[0] if len(longer) == 1 else None


def _reductions(
    cell: CellEvidence, rank: RankEvidence, calls: pd.DataFrame, begin: float
) -> list[tuple[int, bool]]:
    """Elements of each all_reduce since then, in order, and whether it is over."""
    header = rank.recording.header
    if header is None:
        return []
    wall_ns = begin * 1e9 + cell.started_mono_ns - header.monotonic_ns + header.wall_ns
    since = calls[(calls.wall_ns >= wall_ns) & calls.op.str.contains("all_?reduce", regex=True)]
    return [
        (elements_of(sizes), not pending)
        for sizes, pending in since[["input_sizes", "pending"]].itertuples(index=False)
    ]


def elements_of(sizes: list[list[int]] | None) -> int:
    """The number of elements in tensors of these sizes, all together."""
    return sum(math.prod(map(int, size)) for size in sizes or [])


def _reduced(elements: int, reductions: list[tuple[int, bool]] | None) -> tuple[bool | None, bool | None]:
    """State of a bucket: issued, and reduced. Takes its reduction out of the list, since buckets of one size are reduced in order."""
    if reductions is None:
        return None, None
    for position, (size, over) in enumerate(reductions):
        if size == elements:
            del reductions[position]
            return True, over
    return False, False

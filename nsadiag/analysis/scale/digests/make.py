"""Makes the digest of a node's ranks, with their numbers in columns, from the same evidence that a judgement of all ranks would read."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsadiag.analysis.facts.device_queue import end_of, first_unfinished
from nsadiag.analysis.facts.groups import newest_dump
from nsadiag.analysis.ingest.run_directory import each_rank, read_ends
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.scale.digests.calls import Issued
from nsadiag.analysis.scale.digests.shape import Digest, SharedValue, packed
from nsadiag.analysis.scale.digests.traits import traits_of
from nsadiag.evidence.documents.values import rows_of
from nsadiag.evidence.documents.watch import RankMotion
from nsadiag.evidence.layout import RunDir, make_private_dir, replace_private
from nsadiag.evidence.recorder import TRANSFER
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.open_spans import open_spans


def digest_of(
    ranks: Iterable[RankEvidence], *, host: str, look: int, motions: Iterable[RankMotion] = ()
) -> Digest:
    """`look` is the number of the second capture; `motions` what the look found of each rank (watch.json).

    Of `ranks`, in order, no more than one is held at a time.
    """
    moved = {motion.rank: motion for motion in motions}
    issued, world_size = Issued(), 0
    traits: dict[int, dict[str, object]] = {}
    calls: dict[int, Any] = {}
    counted = []
    for rank in ranks:
        traits[rank.rank] = traits_of(rank)
        counted.append(counters_of(rank, moved.get(rank.rank)))
        world_size = max(world_size, rank.meta.world_size)
        if (row := issued.row(rank)) is not None:
            calls[rank.rank] = row
    names = dict.fromkeys(name for told in traits.values() for name in told)
    return Digest(
        host=host,
        look=look,
        world_size=world_size,
        ranks=tuple(traits),
        groups=issued.groups,
        calls=_distinct(calls),
        traits={n: _distinct({rank: told[n] for rank, told in traits.items() if n in told}) for n in names},
        counters={name: tuple(row[name] for row in counted) for name in (counted[0] if counted else ())},
    )


def write_digest(
    run: RunDir, *, host: str, ranks: Iterable[int], look: int, motions: Iterable[Mapping[str, Any]] = ()
) -> Path:
    """Write the digest of these ranks in the run directory. Raises OSError."""
    # On one of several nodes, how its ranks ended is in its own folder.
    path = run.node(host) / run.ends.name
    found = each_rank(run, ranks, ends=read_ends(path) if path.exists() else None)
    return kept(run, digest_of(found, host=host, look=look, motions=rows_of(RankMotion, motions)))


def kept(run: RunDir, digest: Digest) -> Path:
    """Write a digest to its file, which is returned. Raises OSError."""
    path = run.digest(digest.host, digest.look)
    make_private_dir(path.parent)
    replace_private(path, packed(digest))
    return path


def together(parts: Sequence[Digest]) -> Digest:
    """The digest of one node, made in parts of its ranks, in order."""
    first = parts[0]
    ranks = [rank for part in parts for rank in part.ranks]
    names = dict.fromkeys(name for part in parts for name in part.traits)
    return dataclasses.replace(
        first,
        ranks=tuple(ranks),
        world_size=max(part.world_size for part in parts),
        groups={key: members for part in parts for key, members in part.groups.items()},
        calls=_distinct({r: s.value for part in parts for s in part.calls for r in s.ranks}),
        traits={
            n: _distinct({r: s.value for part in parts for s in part.traits.get(n, ()) for r in s.ranks})
            for n in names
        },
        counters={n: tuple(v for part in parts for v in part.counters[n]) for n in first.counters},
    )


def _distinct(values: Mapping[int, Any]) -> tuple[SharedValue, ...]:
    """Each value once."""
    found: dict[str, tuple[Any, list[int]]] = {}
    for rank, value in values.items():
        found.setdefault(json.dumps(value, sort_keys=True, default=str), (value, []))[1].append(rank)
    return tuple(SharedValue(value=value, ranks=tuple(ranks)) for value, ranks in found.values())


RECENT = 64  # steps
PEER = re.compile(r"\b(?:to|from)=(\d+)")
BEFORE_STEPS = (Kind.FORWARD, Kind.BACKWARD, Kind.GRADIENT)
# Of a snapshot's motions (agent.stillness.motion.Motion).
MOTIONS = (
    "cpu_share", "main_cpu_share", "frames_changed", "io_bytes", "grown_mib", "gpu_pct", "events", "collectives",
    "waits_for_peers",
)  # fmt: skip


def counters_of(rank: RankEvidence, motion: RankMotion | None) -> dict[str, float | None]:
    """By column; None where nobody could say."""
    events, last = rank.recording.events, rank.last_capture
    proc = last.proc if last and last.proc.pid else None
    return {
        "steps": _number(rank.end.steps) or _steps(rank),
        "last_event_kind": float(events["kind"][-1]) if len(events) else None,
        "last_event_phase": float(events["phase"][-1]) if len(events) else None,
        "last_event_s": float(events["t_ns"][-1]) / 1e9 if len(events) else None,
        "peer": _peer(rank),
        "cpu_s": proc.cpu_s if proc else None,
        "rss_mib": proc.rss_mib if proc else None,
        **_rhythm(rank),
        **{name: _number(getattr(motion, name, None)) for name in MOTIONS},
    }


def _peer(rank: RankEvidence) -> float | None:
    """The rank with which it is in the midst of a transfer, by the recording, or else by NCCL's recorder."""
    for event in open_spans(rank.recording):
        found = PEER.search(event.detail) if event.kind == Kind.COLLECTIVE else None
        if found:
            return float(found[1])
    dump, first = newest_dump(rank), first_unfinished(rank)
    return float(end_of(dump, first)[1]) if first and TRANSFER.search(str(first["profiling_name"])) else None


def _steps(rank: RankEvidence) -> float | None:
    header = rank.recording.header
    return float(next(iter(header.counters.values()), 0)) if header else None


def _rhythm(rank: RankEvidence) -> dict[str, float | None]:
    """Medians of its latest steps, in seconds: the whole, on a CPU, and until its last gradient (or forward) of its own."""
    events = rank.recording.events
    ends = events[(events["kind"] == Kind.STEP) & (events["phase"] == Phase.END)][-RECENT - 1 :]
    if len(ends) < 2:
        ends = events[events["kind"] == Kind.STEP][-RECENT - 1 :]
    if len(ends) < 2:
        return {"step_s": None, "step_cpu_s": None, "work_s": None}
    own = events[events["kind"].isin(BEFORE_STEPS) & (events["phase"] != Phase.END)]["t_ns"].tolist()
    last = [(begin, bisect.bisect_left(own, end) - 1) for begin, end in itertools.pairwise(ends["t_ns"])]
    return {
        "step_s": _median([end - begin for begin, end in itertools.pairwise(ends["t_ns"])]),
        "step_cpu_s": _median([end - begin for begin, end in itertools.pairwise(ends["b"])]),
        "work_s": _median([own[place] - begin for begin, place in last if place >= 0]),
    }


def _median(nanoseconds: Sequence[int]) -> float | None:
    return statistics.median(nanoseconds) / 1e9 if nanoseconds else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

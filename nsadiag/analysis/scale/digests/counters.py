"""Numbers of each rank, in columns: how far it is, how fast, and what it did between the two snapshots."""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from nsadiag.analysis.facts.device_queue import end_of, first_unfinished
from nsadiag.analysis.facts.groups import newest_dump
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.documents.watch import RankMotion
from nsadiag.evidence.recorder import TRANSFER
from nsadiag.evidence.ring.blackbox import Kind, Phase

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
    for event in rank.recording.open_spans:
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
        "step_s": _median(_each(ends["t_ns"], ends["a"])),
        "step_cpu_s": _median(_each(ends["b"], ends["a"])),
        # Of short steps the phases may be left out: there is nothing between begin and end.
        "work_s": _median(
            [own[place] - begin for begin, place in last if place >= 0 and own[place] >= begin]
        ),
    }


def _each(values: Iterable[int], counts: Iterable[int]) -> list[float]:
    """Seconds of each step, by the values at their ends: not every end is in the events."""
    pairs = itertools.pairwise(zip(values, counts, strict=True))
    return [(end - begin) / max(step - before, 1) for (begin, before), (end, step) in pairs]


def _median(nanoseconds: Sequence[float]) -> float | None:
    return statistics.median(nanoseconds) / 1e9 if nanoseconds else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

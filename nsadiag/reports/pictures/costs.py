"""Step times by rank as curves, the parts of a step, and how long peers waited for each rank, as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.time_parts import PARTS
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.table import Table
from nsadiag.reports.pictures.standing import role
from nsadiag.reports.words import duration, percent

MOST_CURVES = 5
MOST_POINTS = 240  # of a curve
MOST_BARS = 12
FEW_STEPS = 3
FELT_S = 0.05  # a wait worth a bar
WAIT_SHOWN = 0.02  # of a step


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One rank's step times; x and y in hundredths of the picture."""

    name: str
    number: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One rank's time, in hundredths of the longest."""

    name: str
    role: str
    parts: tuple[tuple[str, float], ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Everything of the section; each may be empty."""

    curves: tuple[Curve, ...] = ()
    top: str = ""
    first_step: int = 0
    last_step: int = 0
    left_out: int = 0
    parts: tuple[Bar, ...] = ()
    waits: tuple[Bar, ...] = ()


def costs_of(case: Case, verdict: Verdict | None) -> Costs:
    """Curves where steps were recorded, bars where peers felt a wait."""
    steps = case.steps
    steps = steps[steps.step_s.notna() & (steps.step_s > 0) & (steps.step_s < 1e7)] if len(steps) else steps
    waits = tuple(_waits(verdict))
    if steps.empty or steps.groupby("rank").size().max() < FEW_STEPS:
        return Costs(waits=waits)
    ranks = sorted(
        {int(rank) for rank in steps["rank"]}, key=lambda rank: (role(verdict, rank) != "guilty", rank)
    )
    top = float(steps.step_s.max())
    first, last = int(steps.step.min()), int(steps.step.max())
    return Costs(
        curves=tuple(
            _curve(steps[steps["rank"] == rank], rank, number, top, (first, last))
            for number, rank in enumerate(ranks[:MOST_CURVES])
        ),
        top=duration(top),
        first_step=first,
        last_step=last,
        left_out=max(len(ranks) - MOST_CURVES, 0),
        parts=tuple(_parts(case.parts, ranks[:MOST_BARS], verdict)),
        waits=waits,
    )


def _curve(steps: Table, rank: int, number: int, top: float, ends: tuple[int, int]) -> Curve:
    pairs = list(zip(steps.step.tolist(), steps.step_s.tolist(), strict=True))
    span = (ends[1] - ends[0]) or 1
    points = [((step - ends[0]) / span * 100, 100 - seconds / top * 96) for step, seconds in _peaks(pairs)]
    return Curve(name=f"rank {rank}", number=number, path=" ".join(f"{x:.2f},{y:.1f}" for x, y in points))


def _peaks(pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The highest and lowest point of each stretch, where there are many: an outlier must not be lost."""
    if len(pairs) <= MOST_POINTS:
        return list(pairs)
    size = math.ceil(2 * len(pairs) / MOST_POINTS)
    kept: list[tuple[int, float]] = []
    for start in range(0, len(pairs), size):
        piece = pairs[start : start + size]
        kept += sorted({min(piece, key=lambda p: p[1]), max(piece, key=lambda p: p[1])})
    return kept


def _parts(parts: Table, ranks: Sequence[int], verdict: Verdict | None) -> list[Bar]:
    """The mean step of each rank, and its parts; none of ranks whose phases were not recorded."""
    known = parts[parts.compute_s.notna() & (parts.step_s > 0) & (parts.step_s < 1e7)]
    # A saving comes in few steps: medians would lose it, and would not add up.
    means = {
        rank: {name: own[name].mean() for name in ("step_s", *PARTS)} for rank, own in known.groupby("rank")
    }
    longest = max((row["step_s"] for row in means.values()), default=1.0)
    return [
        Bar(
            name=f"rank {rank}",
            role=role(verdict, rank),
            parts=tuple((name.removesuffix("_s"), row[name] / longest * 100) for name in PARTS),
            text=duration(row["step_s"]) + _waiting(row["peers_s"] / row["step_s"]),
        )
        for rank in ranks
        if (row := means.get(rank))
    ]


def _waiting(share: float) -> str:
    """`, 81 % waiting`: of what nobody would notice, nothing."""
    return f", {percent(share)} waiting" if share >= WAIT_SHOWN else ""


def _waits(verdict: Verdict | None) -> list[Bar]:
    if verdict is None:
        return []
    felt = [wait for wait in verdict.peer_waits if wait.total_s >= FELT_S][:MOST_BARS]
    longest = max((wait.total_s for wait in felt), default=1.0)
    return [
        Bar(
            name=f"rank {wait.rank}",
            role=role(verdict, wait.rank),
            parts=(("wait", wait.total_s / longest * 100),),
            text=duration(wait.total_s) + (", still" if wait.now_s else ""),
        )
        for wait in felt
    ]

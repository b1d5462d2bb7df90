"""One run's records of its first steps (parity.jsonl) over all ranks: parameters whole, losses averaged."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.analysis.matrix.parity.data import Data
from nsadiag.analysis.matrix.parity.sketch import Sketch, mean, spread, total
from nsadiag.evidence.layout import RunDir, read_json, read_json_lines

Place = tuple[Any, ...]  # where a part lies in the parameter


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A parameter, or its gradient, of all ranks together."""

    sketch: Sketch | None  # None: no gradient anywhere
    finite: bool = True
    apart: float = 0.0  # largest distance between copies that ranks hold of the same part
    average: Sketch | None = None  # of the copies, where they differ


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """At the entry of one optimizer step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: Whole | None
    gradient: Whole
    complete: bool  # whether the parts that were recorded make up the whole


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The input of one step."""

    loss: (
        float | None
    )  # mean over ranks of the sum over micro-batches; None where there is none, or it is no number
    diverged: bool  # a loss is no number
    backwards: int
    precisions: frozenset[str]
    data: Data
    drew: bool
    random: tuple[int | None, ...]  # by rank: the generators' state before the step
    scale: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step."""

    facts: Facts | None
    parameters: dict[str, Parameter]
    unclipped: dict[str, Parameter]  # gradients before clipping, where it was seen


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run."""

    steps: tuple[Step, ...]
    world_size: int
    ranks: tuple[int, ...]  # that recorded anything
    unread: int  # parameters that some rank could not lay out
    source: str  # the first rank's file, in the run directory


def read_record(directory: Path) -> Record:
    """Never raises on what is missing: a record without steps says so."""
    run = RunDir(path=directory)
    rows = {rank.rank: read_json_lines(rank.parity) for rank in run.ranks()}
    return record_of(rows, {rank: read_json(run.rank(rank).meta, {}).get("world_size") for rank in rows})


def record_of(written: dict[int, list[Any]], world_sizes: dict[int, Any]) -> Record:
    """From the rows of parity.jsonl, and the size of the world as each rank knew it, by rank."""
    rows = {rank: [r for r in found if isinstance(r, dict)] for rank, found in written.items() if found}
    sizes = [world_sizes[rank] for rank in rows]
    return Record(
        steps=_steps(rows),
        world_size=max((s for s in sizes if isinstance(s, int)), default=len(rows)),
        ranks=tuple(sorted(rows)),
        unread=sum(int(row.get("unread") or 0) for found in rows.values() for row in found),
        source=f"ranks/{min(rows, default=0):05d}/parity.jsonl",
    )


def _steps(rows: dict[int, list[dict[str, Any]]]) -> tuple[Step, ...]:
    facts = {rank: [row["facts"] for row in found if row.get("facts")] for rank, found in rows.items()}
    parameters, unclipped = _parameters(rows, "step"), _parameters(rows, "clip")
    count = min((len(found) for found in facts.values()), default=0)
    return tuple(
        Step(
            facts=_facts([facts[rank][n] for rank in sorted(facts)]),
            parameters=parameters[n],
            unclipped=unclipped[n],
        )
        for n in range(count)
    )


def _parameters(rows: dict[int, list[dict[str, Any]]], phase: str) -> dict[int, dict[str, Parameter]]:
    """By step, and by name; the n-th time that a rank tells of a part is its n-th step, whichever optimizer it has."""
    parts: dict[int, dict[str, dict[Place, list[dict[str, Any]]]]] = defaultdict(dict)
    for found in rows.values():
        times: Counter[tuple[str, Place]] = Counter()
        for row in found:
            for part in row["parameters"] if row.get("phase") == phase else ():
                place = tuple(tuple(a) if isinstance(a, list) else a for a in part["at"])
                step = times[part["name"], place]
                times[part["name"], place] += 1
                parts[step].setdefault(part["name"], {}).setdefault(place, []).append(part)
    found_parameters: dict[int, dict[str, Parameter]] = defaultdict(dict)
    for step, by_name in parts.items():
        found_parameters[step] = {name: _parameter(name, places) for name, places in by_name.items()}
    return found_parameters


def _parameter(name: str, places: dict[Place, list[dict[str, Any]]]) -> Parameter:
    first = next(iter(places.values()))[0]
    elements = sum(_elements(place) for place in places)
    held = [parts for place, parts in places.items() if _elements(place)]
    return Parameter(
        name=name,
        shape=tuple(first["shape"]),
        dtype=str(first.get("dtype")),
        value=_whole([[p["value"] for p in parts] for parts in held]) if "value" in first else None,
        gradient=_whole([[p["gradient"] for p in parts] for parts in held]),
        complete=elements == math.prod(first["shape"]),
    )


def _elements(place: Place) -> int:
    if not place or isinstance(place[0], tuple):
        return math.prod(size for _, size in place)
    return int(place[1] - place[0])


def _whole(parts: list[list[Any]]) -> Whole:
    """`parts`: by place, what each rank that holds it wrote; null is a gradient that nobody computed."""
    if any(row is not None and Sketch.of(row) is None for copies in parts for row in copies):
        return Whole(sketch=None, finite=False)
    read = [[Sketch.of(row) for row in copies] for copies in parts]
    present = [sketch for copies in read for sketch in copies if sketch is not None]
    if not present:
        return Whole(sketch=None)
    nothing = present[0].times(0.0)
    filled = [[sketch or nothing for sketch in copies] for copies in read]
    apart = max(spread(copies) for copies in filled)
    return Whole(
        sketch=total([copies[0] for copies in filled]),
        apart=apart,
        average=total([mean(copies) for copies in filled]) if apart else None,
    )


def _facts(rows: list[dict[str, Any]]) -> Facts:
    losses = tuple(_sum(row["losses"]) for row in rows)
    told = [loss for loss, row in zip(losses, rows, strict=True) if row["losses"]]
    whole = [loss for loss in told if loss is not None]
    backwards = max(int(row["backwards"]) for row in rows)
    return Facts(
        loss=sum(whole) / len(whole) if told and len(whole) == len(told) else None,
        diverged=any(loss is None for loss in told),
        backwards=backwards,
        precisions=frozenset(p for row in rows for p in row["precisions"]),
        data=Data.of([row["inputs"] for row in rows], backwards),
        drew=any(row["drew"] for row in rows),
        random=tuple(row["random"] for row in rows),
        scale=max((float(row["scale"]) for row in rows if row.get("scale")), default=1.0),
    )


def _sum(losses: list[float | None]) -> float | None:
    numbers = [loss for loss in losses if loss is not None]
    return sum(numbers) if numbers and len(numbers) == len(losses) else None

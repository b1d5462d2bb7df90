"""One run's records of its first steps (parity.jsonl) over all ranks: parameters whole, losses averaged."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.analysis.ingest.first_steps.data import Data
from nsadiag.analysis.ingest.first_steps.sketch import Sketch, mean, spread, total
from nsadiag.evidence.documents.first_steps import FirstStep, ParameterPart, StepInput
from nsadiag.evidence.documents.process import Meta
from nsadiag.evidence.documents.types import read_rows, read_value
from nsadiag.evidence.layout import RunDir

Place = tuple[Any, ...]  # where a part lies in the parameter
Rows = Mapping[int, Sequence[FirstStep]]  # by rank


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

    # mean over ranks of the sum over micro-batches; None where there is none, or it is no number
    loss: float | None
    diverged: bool  # a loss is no number
    backwards: int
    precisions: frozenset[str]
    data: Data
    drew: bool
    random: tuple[int | None, ...]  # by rank: the generators' state before the step
    scale: float


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """One optimizer step."""

    facts: Facts | None
    parameters: dict[str, Parameter]
    unclipped: dict[str, Parameter]  # gradients before clipping, where it was seen


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run."""

    steps: tuple[RecordedStep, ...]
    world_size: int
    ranks: tuple[int, ...]  # that recorded anything
    unread: int  # parameters that some rank could not lay out
    source: str  # the first rank's file, in the run directory


def read_record(directory: Path) -> Record:
    """Never raises on what is missing: a record without steps says so."""
    run = RunDir(path=directory)
    rows = {rank.rank: read_rows(FirstStep, rank.parity) for rank in run.ranks()}
    return record_of(
        rows, {rank: (read_value(Meta, run.rank(rank).meta) or Meta()).world_size for rank in rows}
    )


def record_of(written: Rows, world_sizes: Mapping[int, int]) -> Record:
    """From the rows of each rank, and the size of the world as it knew it."""
    rows = {rank: found for rank, found in written.items() if found}
    return Record(
        steps=_steps(rows),
        world_size=max((world_sizes[rank] for rank in rows), default=0),
        ranks=tuple(sorted(rows)),
        unread=sum(row.unread for found in rows.values() for row in found),
        source=f"ranks/{min(rows, default=0):05d}/parity.jsonl",
    )


def _steps(rows: Rows) -> tuple[RecordedStep, ...]:
    facts = {rank: [row.facts for row in found if row.facts] for rank, found in rows.items()}
    parameters, unclipped = _parameters(rows, "step"), _parameters(rows, "clip")
    count = min((len(found) for found in facts.values()), default=0)
    return tuple(
        RecordedStep(
            facts=_facts([facts[rank][n] for rank in sorted(facts)]),
            parameters=parameters[n],
            unclipped=unclipped[n],
        )
        for n in range(count)
    )


def _parameters(rows: Rows, phase: str) -> dict[int, dict[str, Parameter]]:
    """By step, and by name; the n-th time that a rank tells of a part is its n-th step, whichever optimizer it has."""
    parts: dict[int, dict[str, dict[Place, list[ParameterPart]]]] = defaultdict(dict)
    for found in rows.values():
        times: Counter[tuple[str, Place]] = Counter()
        for part in (part for row in found if row.phase == phase for part in row.parameters):
            place = tuple(tuple(a) if isinstance(a, list) else a for a in part.at)
            step = times[part.name, place]
            times[part.name, place] += 1
            parts[step].setdefault(part.name, {}).setdefault(place, []).append(part)
    whole: dict[int, dict[str, Parameter]] = defaultdict(dict)
    for step, by_name in parts.items():
        whole[step] = {name: _parameter(name, places) for name, places in by_name.items()}
    return whole


def _parameter(name: str, places: dict[Place, list[ParameterPart]]) -> Parameter:
    first = next(iter(places.values()))[0]
    elements = sum(_elements(place) for place in places)
    held = [parts for place, parts in places.items() if _elements(place)]
    return Parameter(
        name=name,
        shape=first.shape,
        dtype=first.dtype,
        value=_whole([[p.value for p in parts] for parts in held]) if first.value is not None else None,
        gradient=_whole([[p.gradient for p in parts] for parts in held]),
        complete=elements == math.prod(first.shape),
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


def _facts(rows: list[StepInput]) -> Facts:
    losses = [_sum(row.losses) for row in rows if row.losses]
    finite = [loss for loss in losses if loss is not None]
    backwards = max(row.backwards for row in rows)
    return Facts(
        loss=sum(finite) / len(finite) if finite and len(finite) == len(losses) else None,
        diverged=len(finite) < len(losses),
        backwards=backwards,
        precisions=frozenset(p for row in rows for p in row.precisions),
        data=Data.of([row.inputs for row in rows], backwards),
        drew=any(row.drew for row in rows),
        random=tuple(row.random for row in rows),
        scale=max((float(row.scale) for row in rows if row.scale), default=1.0),
    )


def _sum(losses: Sequence[float | None]) -> float | None:
    numbers = [loss for loss in losses if loss is not None]
    return sum(numbers) if numbers and len(numbers) == len(losses) else None

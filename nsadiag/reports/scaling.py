"""The costs of a matrix, for every format: values from matrix.json, and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nsadiag.evidence.phrases import count
from nsadiag.reports import values
from nsadiag.reports.words import duration, mebibytes


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cell: what was measured, and what all other cells predict for it."""

    id: str
    measured: float
    predicted: float
    is_off: bool


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The power of a size with which a cost grows, and the interval it lies in nine times of ten."""

    size: str
    exponent: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Jump:
    """From one value of a size to the next: how many times as dear, measured and by the curve."""

    size: str
    low: float
    high: float
    pairs: int
    measured: float
    curve: float
    is_jump: bool


@dataclass(frozen=True, kw_only=True)
class MeasureReport:
    """One cost over all cells."""

    key: str
    name: str
    typical_error: float | None
    linear: frozenset[str]  # sizes in proportion to which it grows, above a fixed part
    growth: tuple[Growth, ...]
    jumps: tuple[Jump, ...]
    points: tuple[Measured, ...]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """`scaling` of matrix.json; `offs` and `cut_short` are sentences."""

    measures: tuple[MeasureReport, ...]
    offs: tuple[str, ...]
    cut_short: tuple[str, ...]

    def predicted(self, key: str) -> dict[str, float]:
        """By cell, what the others predict for this measure."""
        return {p.id: p.predicted for m in self.measures if m.key == key for p in m.points}


def scaling_of(document: Mapping[str, Any]) -> Scaling | None:
    """None where nothing was fitted, or what is there cannot be read."""
    told = values.mapping(document.get("scaling"))
    offs = [row for row in values.items(told.get("offs")) if row.get("id")]
    measures = [
        _measure(key, values.mapping(about), {(str(o["id"]), o.get("measure")) for o in offs})
        for key, about in values.mapping(told.get("measures")).items()
    ]
    known = tuple(measure for measure in measures if measure.points)
    short = tuple(_short_words(row) for row in values.items(told.get("cut_short")))
    if not known and not short:
        return None
    return Scaling(measures=known, offs=tuple(_off_words(off) for off in offs), cut_short=short)


def _measure(key: str, about: Mapping[str, Any], offs: set[tuple[str, Any]]) -> MeasureReport:
    return MeasureReport(
        key=key,
        name=values.text(about.get("name")) or key,
        typical_error=values.number(about.get("typical_error")),
        linear=_linear(values.mapping(about.get("form"))),
        growth=tuple(
            Growth(size=name, exponent=_number(g, "exponent"), low=_number(g, "low"), high=_number(g, "high"))
            for name, g in values.mapping(about.get("growth")).items()
        ),
        jumps=tuple(_jump(row) for row in values.items(about.get("jumps"))),
        points=tuple(
            Measured(
                id=str(row.get("id")),
                measured=_number(row, "measured"),
                predicted=_number(row.get("predicted"), "value"),
                is_off=(str(row.get("id")), key) in offs,
            )
            for row in values.items(about.get("points"))
            if _number(row, "measured") > 0 and _number(row.get("predicted"), "value") > 0
        ),
    )


def _linear(form: Mapping[str, Any]) -> frozenset[str]:
    powers = values.mapping(form.get("powers"))
    return frozenset(name for name, power in powers.items() if power == 1 and _number(form, "fixed") > 0)


def _jump(row: Mapping[str, Any]) -> Jump:
    return Jump(
        size=str(row.get("axis")),
        low=_number(row, "from"),
        high=_number(row, "to"),
        pairs=values.whole(row.get("pairs")) or 0,
        measured=_number(row, "measured"),
        curve=_number(row, "curve"),
        is_jump=row.get("is_jump") is True,
    )


def _number(about: Any, key: str) -> float:
    return values.number(values.mapping(about).get(key)) or 0.0


def shown(key: str, value: float) -> str:
    """With the unit of its measure."""
    return mebibytes(value) if key.endswith("_mib") else duration(value)


def _off_words(off: Mapping[str, Any]) -> str:
    key, told = str(off.get("measure")), off.get("predicted")
    low, high = (shown(key, _number(told, edge)) for edge in ("low", "high"))
    factor, repeats = _number(off, "factor"), values.whole(off.get("repeats")) or 1
    words = (
        f"{off['id']}: {off.get('name')} {shown(key, _number(off, 'measured'))}; predicted from the other cells"
        f" {shown(key, _number(told, 'value'))} ({low} to {high}){f', {factor:.2g}x' if factor else ''}"
    )
    words += f"; median of {repeats} repeats" if repeats > 1 else ""
    return words + ("; other cells ran at the same time" if _number(off, "beside") > 0.1 else "")


def _short_words(row: Mapping[str, Any]) -> str:
    low, high = (duration(_number(row.get("predicted"), edge)) for edge in ("low", "high"))
    return (
        f"{row.get('id')}: stopped after {duration(_number(row, 'after_s'))}; predicted from the other cells"
        f" {duration(_number(row.get('predicted'), 'value'))} ({low} to {high}): its time limit was too short, which is"
        " no sign of a hang"
    )


def growth_words(measure: MeasureReport) -> list[str]:
    """One sentence a size: how the cost grows with it, and whether there is a threshold."""
    sentences = []
    for growth in measure.growth:
        interval = f"exponent {growth.exponent:.2f}, 90 % interval {growth.low:.2f} to {growth.high:.2f}"
        sentences.append(
            f"{measure.name[:1].upper()}{measure.name[1:]} {_grows(growth, measure.linear)} ({interval}){_threshold(measure, growth.size)}"
        )
    return sentences


def _grows(growth: Growth, linear: frozenset[str]) -> str:
    if growth.exponent > 0.05 and growth.size in linear:
        return f"is a fixed part plus one proportional to {growth.size}"
    if abs(growth.exponent) < 0.1:
        return f"hardly changes with {growth.size}"
    if growth.exponent < 0:
        return f"falls with {growth.size}"
    if growth.low <= 1 <= growth.high or abs(growth.exponent - 1) < 0.1:
        return f"is proportional to {growth.size}"
    if growth.low <= 2 <= growth.high:
        return f"grows with the square of {growth.size}"
    return f"grows {'more slowly' if growth.exponent < 1 else 'faster'} than {growth.size}"


@dataclass(frozen=True, kw_only=True)
class GrowthRow:
    """One row of the table: a cost, a size, and how the one grows with the other."""

    cost: str
    size: str
    grows: str
    exponent: str
    interval: str
    steepest: str
    is_threshold: bool


def growth_rows(measures: Iterable[MeasureReport]) -> list[GrowthRow]:
    """The same as the sentences, for a table."""
    return [
        GrowthRow(
            cost=measure.name,
            size=growth.size,
            grows=_grows(growth, measure.linear),
            exponent=f"{growth.exponent:.2f}",
            interval=f"{growth.low:.2f} to {growth.high:.2f}",
            steepest=f"{worst.low:g} to {worst.high:g}: {worst.measured:.2f}x (model {worst.curve:.2f}x)"
            if worst
            else "",
            is_threshold=any(jump.is_jump for jump in measure.jumps if jump.size == growth.size),
        )
        for measure in measures
        for growth in measure.growth
        for worst in (_worst(measure, growth.size),)
    ]


def _worst(measure: MeasureReport, size: str) -> Jump | None:
    """The pair of neighbouring values whose ratio is furthest from the curve's."""
    return max(
        (jump for jump in measure.jumps if jump.size == size),
        key=lambda j: abs(math.log(j.measured / j.curve)) if j.measured > 0 < j.curve else 0.0,
        default=None,
    )


def _threshold(measure: MeasureReport, size: str) -> str:
    worst = _worst(measure, size)
    if worst is None:
        return ""
    is_jump = any(jump.is_jump for jump in measure.jumps if jump.size == size)
    return (
        f"; {'jump' if is_jump else 'no jump: the steepest is'} from {worst.low:g} to {worst.high:g},"
        f" {worst.measured:.2f}x (model {worst.curve:.2f}x, {count(worst.pairs, 'pair')} of cells)"
    )

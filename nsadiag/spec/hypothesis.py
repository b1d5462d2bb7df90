"""A claim, the factor that it blames, and the pairs of cells that confirm or refute it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import Field, model_validator

from nsadiag.errors import UsageError
from nsadiag.spec.cell import Cell
from nsadiag.spec.criterion import parse_criterion, settings_needed
from nsadiag.spec.space import Factors, Space, checked_pattern, in_words
from nsadiag.spec.strict import Strict, label

Scalar: TypeAlias = str | int | float | bool | None
ANY = "any"


class Hypothesis(Strict):
    """Same everything, one factor varied: what would confirm the claim, and anything else refutes it."""

    claim: str = Field(min_length=1)
    source: str = ""  # who claims it
    vary: dict[str, list[Scalar]] = Field(
        default_factory=dict
    )  # one factor and its settings: a first, then b
    where: Literal["any"] | dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
    confirmed_if: str = ""
    not_tested: str = ""  # why this matrix cannot tell, and what could

    @model_validator(mode="after")
    def _can_be_judged(self) -> Hypothesis:
        if self.not_tested:
            if self.vary or self.confirmed_if:
                raise ValueError("not_tested stands in the place of vary and confirmed_if")
            return self
        if len(self.vary) != 1:
            raise ValueError("vary wants one factor and its settings, as in `vary: {layers: [4, 5]}`")
        if not self.confirmed_if:
            raise ValueError("confirmed_if is missing, as in `confirmed_if: only b fails`")
        fewest, most = settings_needed(self.criterion())
        if not fewest <= len(self.settings) <= (most or len(self.settings)):
            raise ValueError(
                f"{self.confirmed_if!r} wants {fewest}{'' if most else ' or more'} settings to vary"
            )
        if len(set(self.settings)) < len(self.settings):
            raise ValueError("vary names a setting twice")
        if self.criterion()["form"] == "shape" and not all(map(_is_number, self.settings)):
            raise ValueError(f"{self.confirmed_if!r} wants settings that are numbers")
        return self

    @property
    def factor(self) -> str:
        return next(iter(self.vary))

    @property
    def settings(self) -> list[str]:
        return [label(value) for value in self.vary[self.factor]]

    def criterion(self) -> dict[str, str]:
        """`confirmed_if`, read."""
        return parse_criterion(self.confirmed_if)


def words_named(hypothesis: Hypothesis) -> list[str]:
    """The outcomes or classes that its criterion names."""
    criterion = {} if hypothesis.not_tested else hypothesis.criterion()
    return [criterion[key] for key in ("what", "a", "b") if key in criterion]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One place where a claim is tried: all other factors, and by setting the cells, one a repeat."""

    context: Factors
    cells: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        return {"context": self.context, "cells": self.cells}


def combinations_needed(hypotheses: Sequence[Hypothesis], room: Space) -> list[Factors]:
    """Every combination that some hypothesis cannot do without. UsageError where it is left out."""
    needed = []
    for hypothesis in hypotheses:
        if hypothesis.not_tested:
            continue
        what = f"hypothesis {hypothesis.claim!r}"
        settings = checked_pattern({hypothesis.factor: hypothesis.vary[hypothesis.factor]}, room, what)
        for context in _contexts(hypothesis, room):
            for setting in settings[hypothesis.factor]:
                factors = {**context, hypothesis.factor: setting}
                if not room.allows(factors):
                    raise UsageError(
                        f"{what} needs {in_words(factors, room)}, which is left out",
                        "change its `where`, or `exclude`; a setting with `command` stands alone",
                    )
                needed.append(factors)
    return needed


def _contexts(hypothesis: Hypothesis, room: Space) -> list[Factors]:
    """All that its `where` fixes; what may be anything is at its base, and tried wherever else the matrix goes."""
    fixed = _fixed(hypothesis, room)
    values = [fixed.get(name) or (room.base[name],) for name in room.axes]
    return [dict(zip(room.axes, chosen, strict=True)) for chosen in itertools.product(*values)]


def _fixed(hypothesis: Hypothesis, room: Space) -> dict[str, tuple[str, ...]]:
    """Factor to the labels it may have; no entry where it may have any."""
    if isinstance(hypothesis.where, str):
        return {}
    named = {name: value for name, value in hypothesis.where.items() if value != ANY}
    what = f"hypothesis {hypothesis.claim!r}: where"
    if hypothesis.factor in hypothesis.where:
        raise UsageError(f"{what} names {hypothesis.factor}, which is varied", "leave it out of where")
    fixed = checked_pattern(named, room, what)
    free = {*hypothesis.where} - {*named}
    checked_pattern({name: room.base.get(name, "") for name in free}, room, what)
    return {name: fixed.get(name, (room.base[name],)) for name in room.axes if name not in free}


def trials_of(hypothesis: Hypothesis, room: Space, cells: Sequence[Cell]) -> list[Trial]:
    """The places among these cells where the claim is tried, in the order of the cells."""
    if hypothesis.not_tested:
        return []
    fixed = {
        name: set(values) for name, values in _fixed(hypothesis, room).items() if name != hypothesis.factor
    }
    found: dict[tuple[str, ...], Trial] = {}
    for cell in cells:
        context = {name: cell.factors[name] for name in room.axes if name != hypothesis.factor}
        setting = cell.factors[hypothesis.factor]
        if setting in hypothesis.settings and _matches(context, fixed):
            empty = Trial(context=context, cells={s: [] for s in hypothesis.settings})
            found.setdefault(tuple(context.values()), empty).cells[setting].append(cell.id)
    # With `any`, a place that has one of the settings only is no trial.
    return [
        t for t in found.values() if len(hypothesis.settings) == 1 or sum(map(bool, t.cells.values())) > 1
    ]


def _matches(context: Factors, fixed: Mapping[str, set[str]]) -> bool:
    return all(context[name] in values for name, values in fixed.items())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""A rank's first optimizer steps as the probe `parity` recorded them (parity.jsonl), and their comparison with a control (parity.json)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from nsadiag.evidence.documents.shapes import count, either, measured, of, rows, text
from nsadiag.evidence.documents.values import Measured, Whole

# Numbers of a sketch; the words where not all of them are finite.
Sketched = Annotated[Any, either(text, rows(measured))]
# From an element to another of the flattened tensor, or start and size in each of its dimensions.
Position = Annotated[Any, either(of(count, count), rows(of(count, count)))]


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """Inputs of one step of this rank."""

    losses: tuple[Measured | None, ...] = ()  # of each backward; None where it is no number
    backwards: int = 0
    precisions: tuple[str, ...] = ()
    inputs: tuple[tuple[Measured, ...] | None, ...] = ()  # digests of the data; None where nothing is known
    random: Whole | None = None  # the generators' state before the step
    drew: bool = False
    scale: Measured | None = None


@dataclass(frozen=True, kw_only=True)
class ParameterPart:
    """The part of a parameter that the rank holds."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    at: Position
    value: Sketched = None
    gradient: Sketched = None


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """One optimizer step, before it (`phase` step), or before gradients were clipped (`clip`)."""

    step: int
    phase: str
    facts: StepInput | None = None  # of the first optimizer alone
    parameters: tuple[ParameterPart, ...]
    optimizer: int | None = None
    unread: int = 0  # parameters that could not be laid out


@dataclass(frozen=True, kw_only=True)
class ControlComparison:
    """A cell of a matrix beside its control, as far as a verdict needs it: parity.json."""

    judgement: str = ""  # same, differs, not_comparable; empty where nothing was compared
    why: str | None = None  # not comparable
    control: str = ""
    confidence: float | None = None
    says: str | None = None
    parameter: str | None = None
    module: str | None = None
    place: str | None = None  # file:line:function
    step: int | None = None
    phase: str | None = None
    claims: tuple[str, ...] = ()
    fix: str | None = None
    source: str = ""

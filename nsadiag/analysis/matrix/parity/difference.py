"""The difference of one parameter from the control's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The differences of one parameter, relative to its size in the control."""

    parameter: str
    relative: float  # infinite where one of the two is no number
    ratio: float | None = None  # the factor that takes the control's closest to the cell's
    apart: bool = False  # the cell's ranks do not hold one gradient
    averaged: bool = False  # and yet the mean over ranks is the control's
    scaled: bool = False  # a factor explains it
    nothing: bool = False  # no gradient at all, where the control has one

"""fix.json: the repair of a run, as `nsadiag fix` leaves it in the run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fixed", "agrees", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One row of the proof: whether a criterion is met, and the fact that decides it."""

    criterion: str
    met: bool
    because: str


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another candidate, tried or not."""

    what: str
    result: Level | None = None  # null: not tried
    because: str = ""
    diff: str = ""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The best candidate with its proof, and the others."""

    result: Level
    what: str = ""
    template: str = ""
    cost: str = ""  # what the patch leaves out
    diff: str = ""
    proof: tuple[Shown, ...] = ()
    others: tuple[Alternative, ...] = ()
    written: bool = False  # to the sources
    seconds: float = 0.0

"""A candidate: one condition on which the sides of a divergence may depend differently, the facts for it, and the ranking of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.evidence.phrases import middle_left_out
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.source.control import Condition

LONGEST = 100
DEPENDS = {"rank": "the rank", "data": "this rank's own data or state", "input": "whether data are left", "uniform": "counters"}  # fmt: skip


class Kind(Enum):
    """The act in which the sides differ at the condition."""

    BRANCH = "branch"
    MODULES = "modules run"
    LOOP_END = "end of a loop's inputs"
    LOOP_EXIT = "exit of a loop"
    LOST_STEP = "iteration without its step"
    ORDER = "iteration order"
    GRADIENT_SYNC = "reduction of gradients"
    FLAG = "flag of a framework"


CLASS_OF_KIND = {
    Kind.MODULES: "divergent_module_execution",
    Kind.LOOP_END: "uneven_inputs",
    Kind.ORDER: "collective_order_mismatch",
    Kind.GRADIENT_SYNC: "grad_sync_mismatch",
}
CLASS_OF_PROVENANCE = {  # of the other kinds: what the condition depends on makes the class
    "rank": "rank_conditional_collective",
    "input": "uneven_inputs",
    "data": "data_divergent_control_flow",
}


class Proximity(IntEnum):
    """Proximity to the divergence of the record that shows the sides on either side of the condition.

    `shown_by` is in the singular: it stands before a verb.
    """

    shown_by: str

    SOURCE = 1, "one snapshot and the source"  # the condition may have changed since
    FRAMEWORK = 2, "a value given to a framework"  # or its loader's answer
    UNITS = 3, "the order of FSDP's units"
    STEPS = 4, "the number of steps between two calls"
    CALLS = 5, "the first call that differs"
    ORDER = 6, "a call that all ranks made before"
    PLACE = 7, "the line where a rank waits"  # what depends on the rank alone is the same in every iteration
    PATH = 8, "the recorded path"

    def __new__(cls, value: int, shown_by: str) -> Proximity:
        made = int.__new__(cls, value)
        made._value_, made.shown_by = value, shown_by
        return made


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One explanation of why some ranks will never come to what others wait in."""

    kind: Kind
    proximity: Proximity
    condition: Condition | None
    guilty: tuple[int, ...]
    blocked: tuple[int, ...]
    where: Place | None
    because: str  # the rest of a sentence that begins with the guilty ranks
    evidence: tuple[Evidence, ...]
    strength: Strength = Strength.STRONG
    # The fact that leaves no other reading: counted rounds, gradients reduced on one side alone.
    decisive: str = ""
    depends_on: str = ""  # where the condition does not say it
    module: str | None = None
    fix: str | None = None  # where it is not the class's

    @property
    def provenance(self) -> str:
        """The provenance of the difference, as of conditions in the source."""
        return self.depends_on or (self.condition.provenance if self.condition else "data")

    @property
    def cls(self) -> str:
        """By the kind; where that leaves it open, by what the condition depends on."""
        return CLASS_OF_KIND.get(self.kind) or CLASS_OF_PROVENANCE[self.provenance]

    @property
    def score(self) -> tuple[bool, bool, Proximity]:
        """The criteria of the ranking, the weightiest first."""
        return bool(self.decisive), self.provenance == "rank", self.proximity

    def declined(self, cell: CellEvidence) -> Declined:
        """The candidate as what speaks against another explanation."""
        source = self.evidence[0].source if self.evidence else None
        return Declined(f"rank {cell.names(self.guilty)} {self.because}", source)


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A condition that a generator looked at and made no candidate of, and why."""

    condition: Condition
    because: str  # the rest of a sentence that begins with the condition


def ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The best first; of equals the one that was found first."""
    return tuple(sorted(candidates, key=lambda each: each.score, reverse=True))


def why_lost(one: Candidate, winner: Candidate) -> str:
    """The fact by which a candidate is behind the best."""
    if (one.cls, one.guilty, one.condition) == (winner.cls, winner.guilty, winner.condition):
        return f"the best candidate is the same condition, shown by {winner.proximity.shown_by}"
    if bool(one.decisive) != bool(winner.decisive):
        return winner.decisive
    if (one.provenance == "rank") != (winner.provenance == "rank"):
        return f"{named(winner)} depends on the rank, and this one on {DEPENDS[one.provenance]}"
    if one.proximity != winner.proximity:
        return f"{one.proximity.shown_by} shows less of a divergence than {winner.proximity.shown_by}"
    return f"no better than {named(winner)}, which was found first"


def named(one: Candidate) -> str:
    """The candidate's condition with its line, or its kind where no line is known."""
    if one.condition is None:
        return f"the {one.kind.value}"
    return stated(one.condition)


def stated(condition: Condition) -> str:
    """The condition with its line."""
    return f"`{shown(condition)}` ({locations.short(condition.place)})"


def shown(condition: Condition) -> str:
    """The condition as the source has it; of a long one the terms that decide, and of a long term its two ends."""
    if condition.kind == "only":
        return f"@{condition.test}"
    word = {"for": "for ... in", "while": "while", "except": "except"}.get(condition.kind, "if")
    whole = f"{word} {condition.written or condition.test}"
    if len(whole) > LONGEST and condition.deciding:
        whole = f"{word} {condition.deciding}"
    return middle_left_out(whole, LONGEST)

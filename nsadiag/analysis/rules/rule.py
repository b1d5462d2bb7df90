"""A rule: the check for one class of verdict, with what a reader and the resolver need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from nsadiag.analysis.case import Tables
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.evidence.records import Finding

Family = Literal[
    "structure", "stopped", "divergence", "exit", "blocked", "waiting", "correctness", "performance", "terminal"
]  # fmt: skip
Need = Literal["black_boxes", "stacks", "flight_recorders", "looks", "ends", "sources"]
Check = Callable[[CellEvidence, Tables], Iterator[Finding | Declined]]

# By family, the families whose findings explain what its rules see.
CAUSES: dict[str, tuple[Family, ...]] = {
    "structure": (),
    # A stopped rank does nothing at all: where it was stopped explains nothing.
    "stopped": ("structure",),
    # What is raised or killed afterwards only says that the ranks diverged.
    "divergence": ("structure", "stopped"),
    "exit": ("divergence",),
    # What is missing of a rank that ended was not missing before it ended.
    "blocked": ("exit",),
    # A rank blocked in itself explains whatever its peers wait in.
    "waiting": ("blocked",),
    # Completed or not, what it trained is wrong, however slowly.
    "correctness": ("waiting",),
    "performance": ("correctness",),
    "terminal": ("performance",),
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One way to conclude a class; `explained_by` names rules of its family whose findings outrank its own."""

    name: str
    concludes: tuple[str, ...]  # classes, the usual one first
    family: Family
    detected: str  # Markdown
    fix: str
    check: Check
    needs: tuple[Need, ...] = ()
    explained_by: tuple[str, ...] = ()
    confused_with: tuple[str, ...] = ()  # classes

    @property
    def cls(self) -> str:
        """The class that it usually concludes."""
        return self.concludes[0]

"""A rule: the check for one class of verdict, with what a reader and the resolver need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from nsadiag.evidence.records import Act, Outcome, Place, Strength, Where

if TYPE_CHECKING:  # they import the analysis, and the catalogue must load at once
    from nsadiag.analysis.case import Case
    from nsadiag.analysis.records import Declined

Family = Literal[
    "structure", "stopped", "divergence", "exit", "blocked", "waiting", "correctness", "performance", "data", "terminal"
]  # fmt: skip
Need = Literal["black_boxes", "stacks", "flight_recorders", "looks", "ends", "sources"]

# By family, the families whose findings explain what its rules see.
CAUSES: dict[str, tuple[Family, ...]] = {
    "structure": (),
    # A stopped rank executes nothing: where it was stopped explains nothing.
    "stopped": ("structure",),
    # Exceptions and signals after a divergence are its consequences.
    "divergence": ("structure", "stopped"),
    "exit": ("divergence",),
    # A rank that ended explains why its peers are blocked.
    "blocked": ("exit",),
    # A rank blocked on its own explains the waits of its peers.
    "waiting": ("blocked",),
    # Wrong results matter more than slow ones.
    "correctness": ("waiting",),
    "performance": ("correctness",),
    # The order of the data spoils no result at once: whoever asks why a job is slow is told that first.
    "data": ("performance",),
    "terminal": ("data",),
}

# Jobs that end well with wrong results, easily taken for healthy ones: one class, which names no mechanism.
SILENT: tuple[Family, ...] = ("correctness", "data")

# The evidence of a draft: each claim, and the file in the run directory that shows it.
Claims: TypeAlias = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A rule's conclusion in one job. What is left out follows from the rule and from how the job ended."""

    summary: str  # one sentence, with the ranks, the call and the line
    strength: Strength
    guilty_ranks: tuple[int, ...] = ()
    blocked_ranks: tuple[int, ...] | None = None  # in a hang or crash: all others
    at: Place | None = None  # the line that explains the failure
    where: Where | None = (
        None  # what is known of the place besides; in a hang or crash: the first guilty rank's step
    )
    peers_at: Place | None = None
    evidence: Claims = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    cls: str | None = None
    outcome: Outcome | None = None
    fix: str | None = None
    next: str | None = None
    actions: tuple[Act, ...] = ()


Check: TypeAlias = "Callable[[Case], Iterator[Draft | Declined]]"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One way to conclude a class; `explained_by` names rules of its family whose findings outrank its own, `explains` those below it.

    `check` yields a Draft where it concludes, and otherwise the facts that kept it from that: reports show them under
    "Ruled out", so each is a sentence with ranks, calls or numbers, and names the file that shows it.
    """

    # A sentence for each class that this rule introduces.
    means: Mapping[str, str] = field(default_factory=dict)
    # Of which evidence it judges: of ranks, of such alone that other tools collected, or of Ray's actors.
    about: Literal["ranks", "collected", "actors"] = "ranks"
    family: Family
    detected: str  # Markdown
    fix: str
    check: Check
    called: str = ""  # where it is not the name of its check: of a row in a table
    keeps: str = ""  # the relation that a correct job keeps, of rules on silent errors that are one's rows
    # Classes, the usual one first; where nothing is given, `silently_wrong` of those families, else that of its own name.
    concludes: tuple[str, ...] = ()
    outcome: Outcome | None = None  # where nothing is given: wrong of those families, else as the job ended
    # Next actions, in order of preference. Most failures follow from code and input: a retry fails the same way.
    actions: tuple[Act, ...] = ("fix code",)
    needs: tuple[Need, ...] = ()
    # Why ranks came to that line stands in the source: where it is not at hand, a draft is likely at most, and says so.
    cause_in_source: bool = False
    explained_by: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    # Classes, the nearest first: the resolver reports what speaks against each.
    confused_with: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        silent = self.family in SILENT
        own = ("silently_wrong",) if silent and self.name not in self.means else (self.name,)
        object.__setattr__(self, "concludes", self.concludes or own)
        if silent:
            object.__setattr__(self, "outcome", self.outcome or "wrong")
            object.__setattr__(self, "confused_with", self.confused_with or ("healthy",))

    @property
    def name(self) -> str:
        """That of its row, or of its check."""
        return self.called or self.check.__name__

    @property
    def cls(self) -> str:
        """The class that it usually concludes."""
        return self.concludes[0]

"""Steps whose gradients were never reduced, because the last pass before the optimizer ran inside `no_sync`.

DDP decides at its forward: a backward outside `no_sync` reduces nothing where the forward was inside. FSDP decides at the
backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase

WRAPPER = "DistributedDataParallel"


@dataclass(frozen=True, kw_only=True)
class UnsyncedSteps:
    """The optimizer steps of one rank that used only that rank's gradients."""

    steps: int
    of: int
    first: int
    place: Place | None  # of the no_sync
    passes: str  # which decided: forward or backward

    @property
    def all(self) -> bool:
        """Whether no step had its gradients reduced."""
        return self.steps == self.of

    @property
    def says(self) -> str:
        """The cause, as a clause."""
        if self.all:
            return f"every {self.passes} ran inside no_sync, and no gradient was ever reduced"
        return (
            f"in {self.steps} of {self.of} steps, first before step {self.first}, the last {self.passes} ran "
            "inside no_sync, and the optimizer used gradients that were not reduced"
        )


def unsynced_steps(case: Case, rank: int, until: int = 0) -> UnsyncedSteps | None:
    """The rank's unreduced steps; None without any, or if the first comes after step `until` (0: any time)."""
    mine = case.events_of(rank, Kind.GRAD_SYNC, Kind.BACKWARD, Kind.STEP, Kind.FORWARD)
    mine = mine[(mine.kind != Kind.FORWARD) | (mine.name == WRAPPER)]
    switched, kept, asked = 0, False, ""
    at_forward: bool | None = None  # of DDP's forward since the last backward
    passes = "backward"
    found: list[tuple[int, str]] = []
    steps = 0
    for kind, phase, number, site in mine[["kind", "phase", "a", "site"]].itertuples():
        if kind == Kind.GRAD_SYNC:
            switched += 1 if phase == Phase.BEGIN else -1
            asked = site if phase == Phase.BEGIN else asked
        elif kind == Kind.FORWARD and phase == Phase.BEGIN:
            at_forward, passes = switched > 0, "forward"
        elif kind == Kind.BACKWARD and phase == Phase.BEGIN:
            kept = switched > 0 if at_forward is None else at_forward
            at_forward = None
        elif kind == Kind.STEP:
            steps += 1
            if kept:
                found.append((int(number), asked))
            kept = False
    if not found or (until and found[0][0] > until):
        return None
    (first, at), *_ = found
    place = locations.of_text(str(at)) if at else None
    return UnsyncedSteps(steps=len(found), of=steps, first=first, place=place, passes=passes)

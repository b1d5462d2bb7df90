"""The result of a hypothesis, in one shape for all."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.explain.context import Divergence, Situation
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.source.control import Condition

LONGEST = 80
DEPENDS = {"rank": "the rank", "data": "this rank's own data or state", "input": "whether data are left", "uniform": "counters"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """A hypothesis that the evidence bears out."""

    cls: str
    guilty: tuple[int, ...]
    blocked: tuple[int, ...]
    where: Place | None
    guard: Condition | None
    because: str
    strength: Strength
    evidence: tuple[Evidence, ...]
    module: str | None = None


def shown(guard: Condition) -> str:
    """The condition as the source has it, shortened."""
    if guard.kind == "only":
        return f"@{guard.test}"
    word = {"for": "for ... in", "while": "while", "except": "except"}.get(guard.kind, "if")
    text = f"{word} {guard.test}"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def made(s: Situation, case: Case) -> Divergence:
    """With what is the same for all: where the peers are, the collective, and the condition as evidence."""
    condition: tuple[Evidence, ...] = ()
    if case.guard is not None:
        claim = f"`{shown(case.guard)}` depends on {DEPENDS[case.guard.origin]}"
        condition = (Evidence(claim=claim, source=s.cited(case.guard.file, case.guard.line)),)
    still = s.cell.watch.get("looks", [])
    looked = (Evidence(claim=still[-1]["reason"], source="watch.json#looks"),) if still else ()
    waiting = next((c for r in (*case.blocked, *case.guilty) if (c := s.collective(r))), None)
    return Divergence(
        cls=case.cls,
        guilty=case.guilty,
        blocked=case.blocked,
        where=case.where,
        peers_at=s.here(case.blocked[0]) if case.blocked else None,
        because=case.because,
        evidence=(*case.evidence, *condition, *looked),
        strength=case.strength,
        collective=waiting,
        module=case.module,
        guard=case.guard,
    )

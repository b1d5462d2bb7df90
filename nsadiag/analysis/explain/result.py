"""The result of a hypothesis, in one shape for all."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.source.control import Condition

LONGEST = 80
DEPENDS = {"rank": "the rank", "data": "this rank's own data or state", "input": "whether data are left", "uniform": "counters"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cause:
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


def made(context: Context, cause: Cause) -> Explanation:
    """With what is the same for all: where the peers are, the collective, and the condition as evidence."""
    condition: tuple[Evidence, ...] = ()
    if cause.guard is not None:
        claim = f"`{shown(cause.guard)}` depends on {DEPENDS[cause.guard.provenance]}"
        condition = (Evidence(claim=claim, source=context.cited(cause.guard.file, cause.guard.line)),)
    still = context.cell.watch.looks
    looked = (Evidence(claim=still[-1].reason, source="watch.json#looks"),) if still else ()
    waiting = next((c for r in (*cause.blocked, *cause.guilty) if (c := context.collective(r))), None)
    return Explanation(
        cls=cause.cls,
        guilty=cause.guilty,
        blocked=cause.blocked,
        where=cause.where,
        peers_at=context.here(cause.blocked[0]) if cause.blocked else None,
        because=cause.because,
        evidence=(*cause.evidence, *condition, *looked),
        strength=cause.strength,
        collective=waiting,
        module=cause.module,
        guard=cause.guard,
    )

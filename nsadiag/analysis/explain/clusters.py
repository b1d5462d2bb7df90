"""Sets of ranks that stand at different lines."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Context
from nsadiag.evidence.records import Place


def _clusters(context: Context) -> list[tuple[Place | None, tuple[int, ...]]]:
    """Ranks by the line at which they are, the largest set first."""
    found: dict[tuple[str, int], list[int]] = {}
    for rank in context.members():
        here = context.here(rank)
        found.setdefault((here.file, here.line) if here and context.now(rank) else ("", 0), []).append(rank)
    ordered = sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))
    return [(context.here(ranks[0]), tuple(ranks)) for ranks in ordered]


def pairs(context: Context) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every two sets of ranks that stand at different lines, the first of which waits in a collective."""
    clusters = [ranks for _, ranks in _clusters(context)]
    return [(a, b) for a in clusters for b in clusters if a != b and context.in_collective(a[0])]

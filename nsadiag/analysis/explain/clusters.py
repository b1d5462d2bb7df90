"""Sets of ranks that stand at different lines."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Situation
from nsadiag.evidence.records import Place


def _clusters(s: Situation) -> list[tuple[Place | None, tuple[int, ...]]]:
    """Ranks by the line at which they are, the largest set first."""
    found: dict[tuple[str, int], list[int]] = {}
    for rank in s.members():
        here = s.here(rank)
        found.setdefault((here.file, here.line) if here and s.now(rank) else ("", 0), []).append(rank)
    ordered = sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))
    return [(s.here(ranks[0]), tuple(ranks)) for ranks in ordered]


def pairs(s: Situation) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every two sets of ranks that stand at different lines, the first of which waits in a collective."""
    clusters = [ranks for _, ranks in _clusters(s)]
    return [(a, b) for a in clusters for b in clusters if a != b and s.in_collective(a[0])]

"""Ranks in a few words: of ten thousand nobody reads a list."""

from __future__ import annotations

from collections.abc import Iterable

MOST_SPANS = 12


def spans(ranks: Iterable[int]) -> str:
    """`0-6, 8-1023`; of very many pieces the first."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in found[:MOST_SPANS]]
    return ", ".join([*shown, "..."] if len(found) > MOST_SPANS else shown)

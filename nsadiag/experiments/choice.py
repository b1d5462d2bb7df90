"""The choice of cuts to try together next: probabilistic delta debugging (Wang et al., ESEC/FSE 2021).

Each cut has a probability that the failure needs what it takes away. A trial takes the set with the largest gain to be
expected; a failed trial makes its members more suspect, the fewer they are the more, and one that fails alone is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nsadiag.experiments.rewriting.edits import Cut, CutId

NEEDED = 0.999


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Cuts to try at once."""

    cuts: tuple[Cut, ...]
    gain: float

    @property
    def ids(self) -> tuple[CutId, ...]:
        return tuple(cut.id for cut in self.cuts)


class Doubts:
    """The probability, by cut id, that the failure needs the cut's code."""

    def __init__(self) -> None:
        self.needed: dict[CutId, float] = {}

    def of(self, cut: Cut) -> float:
        return self.needed[cut.id]

    def expect(self, priors: Mapping[CutId, float]) -> None:
        """New cuts get their prior; what is known stays."""
        for one, prior in priors.items():
            self.needed.setdefault(one, prior)

    def failed(self, cuts: Iterable[Cut]) -> None:
        ids = [cut.id for cut in cuts]
        kept = 1.0 - math.prod(1.0 - self.needed[one] for one in ids)
        for one in ids:
            self.needed[one] = 1.0 if len(ids) == 1 or kept <= 0 else min(self.needed[one] / kept, 1.0)

    def passed(self, cuts: Iterable[Cut]) -> None:
        """They went well together, on what may be another program by now."""
        for cut in cuts:
            self.needed[cut.id] = 0.005

    def forget(self, ids: Iterable[CutId], prior: float) -> None:
        """Reset the needed cuts: with other code gone, they may no longer be needed."""
        for one in ids:
            if self.needed.get(one, 0.0) >= NEEDED:
                self.needed[one] = prior


def choose(candidates: Iterable[Cut], doubts: Doubts, gains: Mapping[CutId, float]) -> Chosen | None:
    """The set to try; None where every cut is known to be needed."""
    open_ones = sorted(
        (c for c in candidates if doubts.of(c) < NEEDED), key=lambda c: (doubts.of(c), -gains[c.id])
    )
    best: Chosen | None = None
    taken: list[Cut] = []
    gone: set[int] = set()
    chance, gain = 1.0, 0.0
    for cut in open_ones:
        if cut.gone and cut.gone <= gone:
            continue
        chance *= 1.0 - doubts.of(cut)
        gain += gains[cut.id] * (len(cut.gone - gone) / len(cut.gone) if cut.gone else 1.0)
        taken.append(cut)
        gone |= cut.gone
        if best is None or gain * chance > best.gain:
            best = Chosen(cuts=tuple(taken), gain=gain * chance)
    return best


def merged(cuts: Iterable[Cut]) -> dict[int, frozenset[tuple[object, ...]]]:
    """The edits of several cuts as one."""
    edits: dict[int, frozenset[tuple[object, ...]]] = {}
    for cut in cuts:
        for node, asked in cut.edits.items():
            edits[node] = edits.get(node, frozenset()) | asked
    return edits

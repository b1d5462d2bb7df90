"""The place where a gradient is wrong first: as backward leaves it on the ranks, or only as they have reduced and changed it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from nsadiag.experiments.prove.layout import Layout, Part
from nsadiag.experiments.prove.record import Array, Rank, Run

ALIKE = 0.01


def wrong_at_backward(ranks: Run, one: Rank, laid: Layout, step: int, name: str) -> bool:
    """False as well where there is no record of it.

    Backward is right where what the ranks computed adds up to what one process did: as a mean, or as a sum that nobody averages.
    """
    theirs = one.named("local", step).get(name)
    if theirs is None:
        return False
    whole = one.numbers(theirs)
    held: dict[Part, list[Array]] = defaultdict(list)
    for rank in ranks.ranks:
        for row in rank.rows("local", step):
            part = laid.parts.get((rank.number, row.name))
            if part is not None and part.name == name:
                held[part].append(rank.numbers(row))
    averages = "wrapped" in ranks.notes and not laid.is_split
    return any(not _adds_up(values, part.of(whole), averages=averages) for part, values in held.items())


def _adds_up(values: list[Array], wanted: Array, *, averages: bool) -> bool:
    if any(value.size != wanted.size for value in values):
        return True
    flat = [value.reshape(-1) for value in values]
    guesses = [np.mean(flat, axis=0), *(() if averages else (np.sum(flat, axis=0),))]
    off = min(float(np.linalg.norm(guess - wanted.reshape(-1))) for guess in guesses)
    return off <= ALIKE * float(np.linalg.norm(wanted))

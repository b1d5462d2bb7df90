"""Differences that a job makes on purpose, as far as the records can tell: what follows from them is refused, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsadiag.experiments.prove.factors import Both, common_factor, explains
from nsadiag.experiments.prove.layout import Layout, Part
from nsadiag.experiments.prove.record import Array, Rank, Run

ALIKE = 1e-3  # of a rate, or a loss


def averaged_now_and_then(ranks: Run, laid: Layout, step: int) -> str:
    """Replicas that part and meet again are averaged by design: local steps."""
    apart = [_copies_part(ranks, laid, s) for s in range(step + 1, ranks.steps)]
    if True in apart and False in apart[apart.index(True) :]:
        return "replicas part and meet again: each makes steps of its own, and they are averaged now and then"
    return ""


def _copies_part(ranks: Run, laid: Layout, step: int) -> bool:
    held: dict[Part, Array] = {}
    for rank in ranks.ranks:
        for name, row in rank.named("parameter", step).items():
            part, value = laid.parts.get((rank.number, name)), rank.numbers(row)
            if part is None:
                continue
            if part in held and not _is_near(held[part], value):
                return True
            held.setdefault(part, value)
    return False


def _is_near(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=1e-12))


def rate_by_ranks(ranks: Run, one: Rank) -> str:
    """Learning rates that differ by one factor from the first step on: they grow with the number of ranks."""
    theirs = _rates(one)
    factors = {_factor(_rates(rank), theirs) for rank in ranks.ranks}
    factor = factors.pop() if len(factors) == 1 else None
    if factor is None or abs(factor - 1) < ALIKE:
        return ""
    return f"the learning rate is {factor:.3g} times one process's from the first step on, as of a rate that grows with the ranks; gradients of the first step agree"


def _rates(rank: Rank) -> list[float]:
    return [rate for row in rank.rows("step", 0) for rate in row.rates]


def _factor(mine: list[float], theirs: list[float]) -> float | None:
    if len(mine) != len(theirs) or not theirs or not all(theirs):
        return None
    factors = np.divide(mine, theirs)
    return round(float(factors[0]), 4) if np.allclose(factors, factors[0], rtol=ALIKE) else None


def compared_in_a_batch(ranks: Run, one: Rank, step: int, pairs: Sequence[Both]) -> str:
    """The loss of a batch is not made of its parts' losses, and ranks exchange nothing of which it is made.

    A loss over pairs in a batch is another one on each rank's part; by design, unless a rank is sent the others' samples.
    """
    if "exchanged" in ranks.notes or common_factor([p for p in pairs if p.mine.any() or p.other.any()]):
        return ""
    mine = [_losses(rank, step) for rank in ranks.ranks]
    theirs = _losses(one, step)
    if not theirs or not all(mine):
        return ""
    parts, whole = [float(np.mean(each)) for each in mine], float(np.mean(theirs))
    if abs(float(np.mean(parts)) - whole) <= ALIKE * abs(whole) or _adds_up(ranks, one, step, parts, whole):
        return ""
    return "the loss of a batch is not made of its parts' losses, as one over pairs in a batch: each rank computes its own"


def _losses(rank: Rank, step: int) -> list[float]:
    return [row.value for row in rank.rows("loss", step) if row.value is not None]


def _adds_up(ranks: Run, one: Rank, step: int, parts: list[float], whole: float) -> bool:
    """Whether some weights make one process's gradients of those that the ranks computed; without these, its loss of theirs."""
    local = [rank.named("local", step) for rank in ranks.ranks]
    rows = one.named("gradient", step)
    shared = [name for name in rows if all(name in each and each[name].local == rows[name].local for each in local)]  # fmt: skip
    if not shared:
        return min(parts) <= whole <= max(parts)
    wanted = np.concatenate([one.numbers(rows[name]).reshape(-1) for name in shared])
    columns = [
        np.concatenate([rank.numbers(held[name]).reshape(-1) for name in shared])
        for rank, held in zip(ranks.ranks, local, strict=True)
    ]
    matrix = np.stack(columns, axis=1)
    weights = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    return explains(matrix @ weights, wanted, wanted - matrix.mean(axis=1))

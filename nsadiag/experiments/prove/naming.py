"""Names for a difference that is proved: a wrong one accuses nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsadiag.evidence.phrases import count
from nsadiag.experiments.prove.compare import Pair, Proof
from nsadiag.experiments.prove.factors import UNEXPLAINED, common_factor, explains
from nsadiag.experiments.prove.record import Array, Run

ALIKE = 0.02
AVERAGED = "whose mean is the one process's: it is not averaged over ranks"
ADDED = "whose sum is the one process's: partial sums that nobody adds up"


@dataclass(frozen=True, kw_only=True)
class Name:
    """A pattern in all that differs, and the advice that goes with it."""

    says: str
    fix: str


def name_of(proof: Proof, ranks: Run) -> Name | None:
    """The first pattern that explains all of it."""
    found = proof.differing
    names = (
        _rate(proof),
        _state(proof),
        _output(proof, ranks),
        _nothing(found),
        _own(proof),
        _factor(proof),
        _weighted(proof, ranks),
        _one_rank(proof),
        _rows(found),
    )
    return next((name for name in names if name is not None), None)


def _rate(proof: Proof) -> Name | None:
    if proof.rates is None or (proof.what == "gradient" and proof.steps == 0):
        return None
    return Name(
        says=f"the learning rate is {proof.rates[0]:.3g}, where one process has {proof.rates[1]:.3g}",
        fix="Make it depend on the step and the global batch alone: a schedule is stepped once a step, on all ranks alike.",
    )


def _state(proof: Proof) -> Name | None:
    """After a restart, of equal gradients."""
    if not proof.after or proof.what != "update":
        return None
    return Name(
        says="gradients agree, and the optimizer makes something else of them: its state did not come back",
        fix="Save and restore the optimizer's state with the weights, on all ranks.",
    )


def _output(proof: Proof, ranks: Run) -> Name | None:
    """Forward differs: by one vector in all rows, or by a factor."""
    if (out := proof.output) is None:
        return None
    off = (out.mine - out.other).reshape(-1, out.mine.shape[-1])
    shift = off.mean(axis=0)
    if float(np.linalg.norm(off - shift)) < UNEXPLAINED * float(np.linalg.norm(off)):
        for rank in ranks.ranks:
            for name, row in rank.first.items():
                now = rank.named("parameter", proof.steps).get(name, row)
                if row.local == shift.shape and (times := _times(shift, rank.numbers(now))):
                    return Name(
                        says=f"the output of {out.module} has {name} {times + 1:.3g} times in it",
                        fix="A bias belongs to the sum over shards, once: add it after the reduction, or on one rank.",
                    )
    factor = _times(out.mine, out.other)
    if factor and not explains(factor * out.other, out.mine, out.mine - out.other):
        factor = None
    says = f"it is {factor:.4g} times the one process's" if factor else f"it is off by {out.relative:.0%}"
    return Name(
        says=f"forward already: the output of {out.module} differs ({says}), for the same samples",
        fix="Look at what this module is given on each rank, and at what is summed or gathered before it returns.",
    )


def _times(mine: Array, other: Array) -> float | None:
    """The factor by which the one is the other, if it is."""
    square = float((other**2).sum())
    ratio = float((mine * other).sum()) / square if square else 0.0
    is_it = float(np.linalg.norm(mine - ratio * other)) < UNEXPLAINED * float(np.linalg.norm(mine))
    return ratio if ratio and is_it else None


def _nothing(found: tuple[Pair, ...]) -> Name | None:
    if not all(not pair.mine.any() for pair in found):
        return None
    return Name(
        says="nothing arrives there",
        fix="Look for what cuts the graph or leaves these out: detach(), no_grad(), a parameter that is not in the optimizer, a group of its own.",
    )


def _factor(proof: Proof) -> Name | None:
    factor = common_factor(proof.differing)
    if factor is None or factor <= 0:
        return None
    what = "gradient" if proof.what == "gradient" else "step"
    whole = f"every {what}" if len(proof.differing) == len(proof.pairs) else f"each of these {what}s"
    return Name(
        says=f"{whole} is {factor:.4g} times as large",
        fix="A factor is missing or applied twice: average over ranks once, divide by the number of micro-batches once, unscale once.",
    )


def _copies(pairs: tuple[Pair, ...]) -> Iterator[list[Pair]]:
    """Those that should be equal, as ranks hold the same part."""
    found = defaultdict(list)
    for pair in pairs:
        found[pair.part].append(pair)
    yield from found.values()


def _own(proof: Proof) -> Name | None:
    """Each rank's own: their mean, or their sum, is what one process has."""
    wrong = {pair.part for pair in proof.differing}
    groups = [copies for copies in _copies(proof.pairs) if copies[0].part in wrong]
    if not groups or any(len(copies) < 2 for copies in groups) or all(map(_are_alike, groups)):
        return None
    shared = "let every rank take part in the same reduction of it, before clipping and the optimizer's step"
    totals = [np.sum([pair.mine for pair in copies], axis=0) for copies in groups]
    for mean, says in ((True, AVERAGED), (False, ADDED)):
        guesses = [total / (len(copies) if mean else 1) for total, copies in zip(totals, groups, strict=True)]
        if all(
            explains(guess, c[0].other, _worst(c).mine - c[0].other)
            for guess, c in zip(guesses, groups, strict=True)
        ):
            return Name(says=f"each rank has one of its own, {says}", fix=f"Reduce it over ranks: {shared}.")
    return None


def _are_alike(copies: list[Pair]) -> bool:
    return all(np.allclose(pair.mine, copies[0].mine, rtol=1e-4, atol=1e-12) for pair in copies)


def _worst(copies: list[Pair]) -> Pair:
    return max(copies, key=lambda pair: pair.relative)


def _weighted(proof: Proof, ranks: Run) -> Name | None:
    """A mean over each rank's own tokens: what the ranks computed adds up to the one process's with other weights."""
    if proof.what != "gradient":
        return None
    worst = max(proof.differing, key=lambda pair: pair.relative)
    local = [rank.numbers(row) for rank in ranks.ranks for row in rank.rows("local", proof.steps) if row.name == worst.name]  # fmt: skip
    if len(local) != len(ranks.ranks) or len({each.shape for each in local} | {worst.other.shape}) != 1:
        return None
    held = [np.mean(local, axis=0), np.sum(local, axis=0)]
    if not any(explains(each, worst.mine, worst.mine - worst.other) for each in held):
        return None  # it is not these that were reduced
    matrix = np.stack([each.reshape(-1) for each in local], axis=1)
    weights = np.linalg.lstsq(matrix, worst.other.reshape(-1), rcond=None)[0]
    rest = float(np.linalg.norm(matrix @ weights - worst.other.reshape(-1)))
    if rest > UNEXPLAINED * float(np.linalg.norm(worst.mine - worst.other)) or np.ptp(weights) < ALIKE:
        return None
    shown = ", ".join(f"{weight:.2f}" for weight in weights[:8])
    return Name(
        says=f"what the ranks compute would have to be added with the weights {shown}: each takes a mean over its own samples or tokens",
        fix="Divide sums by the number of tokens of all ranks: ranks with fewer of them count too much in a mean of means.",
    )


def _one_rank(proof: Proof) -> Name | None:
    guilty = {pair.rank for pair in proof.differing}
    if len(guilty) == len({pair.rank for pair in proof.pairs}):
        return None
    who = ", ".join(map(str, sorted(guilty)))
    return Name(
        says=f"only on {'rank' if len(guilty) == 1 else 'ranks'} {who}",
        fix="Look at what this rank alone does between backward and the optimizer's step.",
    )


def _rows(found: tuple[Pair, ...]) -> Name | None:
    """Some rows of a matrix alone."""
    pair = max(found, key=lambda each: each.relative)
    if pair.mine.ndim < 2 or pair.mine.shape[0] < 4:
        return None
    off = np.abs(pair.mine - pair.other).reshape(pair.mine.shape[0], -1).max(axis=1)
    wrong = np.flatnonzero(off > pair.bound * np.abs(pair.other).max())
    if not 0 < len(wrong) <= pair.mine.shape[0] // 2:
        return None
    return Name(
        says=f"in {count(len(wrong), 'row')} of {pair.mine.shape[0]} alone, from row {wrong[0]} on",
        fix="Look at which indices these rows belong to, and at what is done with them alone.",
    )

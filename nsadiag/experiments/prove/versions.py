"""Two runs on equally many ranks, rank by rank: of two versions, or stopped and started again beside one that went on."""

from __future__ import annotations

import dataclasses

from nsadiag.experiments.prove.compare import Proof, prove
from nsadiag.experiments.prove.layout import is_close
from nsadiag.experiments.prove.record import Rank, Run
from nsadiag.experiments.prove.samples import read

LEAST = 2  # steps after a checkpoint that can tell anything


def against(new: Run, good: Run) -> Proof:
    """The earliest difference that any rank shows."""
    if not good.ranks:
        return _refused("the good run has no record of its steps: run nsadiag prove there")
    if new.world_size != good.world_size:
        return _refused(f"the good run has {good.world_size} ranks, this one {new.world_size}")
    numbers = sorted({rank.number for rank in new.ranks} & {rank.number for rank in good.ranks})
    return _earliest([prove(new.only(number), good.only(number)) for number in numbers])


def saved_at(run: Run) -> int | None:
    """The number of steps before the first state that any rank saved with enough steps behind it."""
    steps = [row.step for rank in run.ranks for row in rank.all_of("saved")]
    return min((step for step in steps if 0 < step <= run.steps - LEAST), default=None)


def resumed(after: Run, whole: Run, stopped_at: int) -> Proof:
    """`after`: what the second start did; `whole`: the run that was not stopped."""
    if not after.is_whole or not after.steps:
        return _refused("the second start made no step of an optimizer")
    goes_on = _goes_on_at(after.ranks, whole, stopped_at)
    if goes_on == 0:
        return _refused(
            "the second start begins again from the start: the command does not go on from what it saved"
        )
    found = [_of_rank(rank, after, whole, stopped_at if goes_on is None else goes_on) for rank in after.ranks]
    return _earliest(found)


def _refused(why: str) -> Proof:
    return Proof(judgement="not_comparable", why=why)


def _earliest(found: list[Proof]) -> Proof:
    refused = next((proof for proof in found if proof.judgement == "not_comparable"), None)
    differing = [proof for proof in found if proof.judgement == "differs"]
    if differing:
        first = min(differing, key=lambda proof: proof.steps)
        pairs = tuple(pair for proof in found if proof.steps == first.steps for pair in proof.pairs)
        return dataclasses.replace(first, pairs=pairs)
    return refused or max(found, key=lambda proof: proof.largest)


def _goes_on_at(ranks: list[Rank], whole: Run, latest: int) -> int | None:
    """The step of the whole run whose parameters the second start has; None where it has none's."""
    mine = {(r.number, name): r.numbers(row) for r in ranks for name, row in r.first.items()}
    steps: list[int] = [*range(latest, 0, -1), 0]
    for step in steps:
        theirs = {
            (r.number, n): r.numbers(row)
            for r in whole.ranks
            for n, row in r.named("parameter", step).items()
        }
        if theirs and theirs.keys() == mine.keys() and all(is_close(mine[key], theirs[key]) for key in mine):
            return step
    return None


def _of_rank(rank: Rank, after: Run, whole: Run, step: int) -> Proof:
    number = rank.number
    mine, other = after.only(number), whole.only(number).later(step)
    one = other.ranks[0]
    base = Proof(judgement="differs", steps=0, unit="samples", after=True)
    for name, row in rank.first.items():
        there = one.named("parameter", 0).get(name)
        if there is not None and not is_close(rank.numbers(row), one.numbers(there)):
            return dataclasses.replace(
                base, what="start", why=f"{name} of rank {number} comes back otherwise"
            )
    for each in range(min(mine.steps, other.steps)):
        if why := read(mine, other, each).why:
            says = f"rank {number} is given other samples than without the stop ({why})"
            return dataclasses.replace(base, what="data", steps=each, why=says)
        rates = [[row.rates for row in side.rows("step", each)] for side in (rank, one)]
        if rates[0] != rates[1]:
            shown = [", ".join(f"{rate:.3g}" for row in side for rate in row[:2]) for side in rates]
            says = f"the learning rate of rank {number} is {shown[0]}, without the stop {shown[1]}"
            return dataclasses.replace(base, what="rate", steps=each, why=says)
    return dataclasses.replace(prove(mine, other), after=True)

"""Gradients of shards that each rank scales by a factor of its own, as by the norm of its shards alone."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Step,
    one_optimizer,
    scaled,
    source,
    steps_of,
)
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import by_rank
from nsadiag.source.patterns.single_call import factor_in_place

# Of one factor for all tensors of a rank: products in single precision, of sums in double.
ALIKE = 1e-4
APART = 1e-2  # of the factors of two ranks
TENSORS = 3


def shard_factors(case: Case) -> Iterator[Draft | Declined]:
    """Only where FSDP shards one model over all ranks: what it leaves on each is a part of one gradient."""
    sharded = all(
        r.units and all(len(u.ranks) == case.cell.world_size for u in r.units) for r in case.cell.ranks
    )
    steps = steps_of(case)
    if not sharded or not one_optimizer(steps):
        if units := [r.rank for r in case.cell.ranks if r.units]:
            yield Declined(
                f"{named(case.cell, units)} shard models by FSDP, and not one over all {case.cell.world_size} ranks for one optimizer"
            )
        return
    known = [(step, factors) for step in steps if (factors := _factors(step)) is not None]
    apart = [(step, factors) for step, factors in known if _differ(factors)]
    if len(known) < LEAST or len(apart) < len(known) / 2:
        if known:
            yield Declined(
                f"in {len(known) - len(apart)} of {count(len(known), 'step')} the gradients of shards are used as FSDP leaves them, or scaled alike on all ranks",
                source(case),
            )
        return
    step, factors = apart[0]
    stepped = step.on_first("step")[0]
    yield silent_error(
        case,
        f"Between backward and the optimizer's step each rank scales all its gradients by one factor of its own, in {len(apart)} of {len(known)} steps: the shards of one gradient get different factors, as by a norm over the rank's own shards.",
        f"gradients as used, divided by what backward left, at step {step.number}: {by_rank(factors, '.4g')}",
        factor_in_place(case.cell.code) or stepped.place,
        Where(step=step.number, phase="optimizer"),
    )


def _factors(step: Step) -> dict[int, float] | None:
    """By rank, the one factor between its gradients as backward left them and as they are used; None where a rank has none or several."""
    found = {}
    for rank, operations in step.ranks.items():
        ratios = scaled(operations)
        if len(ratios) < TENSORS or not max(ratios) - min(ratios) <= ALIKE * max(ratios):
            return None
        found[rank] = min(ratios)
    return found


def _differ(factors: dict[int, float]) -> bool:
    return max(factors.values()) - min(factors.values()) > APART * max(factors.values())


RULE = Rule(
    family="correctness",
    detected="(`--probes light,invariants`) Each rank of a model in FSDP scales the gradients of its shards by another factor before the optimizer uses them",
    fix="Compute the norm over all shards: add the squares of each rank's own norm by an all_reduce, or use clip_grad_norm_ on FSDP's own parameters.",
    check=shard_factors,
    explained_by=("nonfinite", "control_mismatch"),
)

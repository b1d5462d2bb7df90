"""The losses of the first steps, on all ranks: what each was divided by, averaged over, and compared with."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import reduced_names, steps_of
from nsadiag.analysis.relations.replication import is_replicated
from nsadiag.evidence.documents.operations import Loss, Operation


@dataclass(frozen=True, kw_only=True)
class Backwards:
    """The backwards of a step: by rank, in their order."""

    step: int
    ranks: dict[int, list[Operation]]

    def terms(self) -> dict[int, Loss]:
        """The one likelihood of each rank's only backward; none where a rank has several, or none."""
        if any(len(found) != 1 or len(found[0].losses) != 1 for found in self.ranks.values()):
            return {}
        return {rank: found[0].losses[0] for rank, found in self.ranks.items()}


def backwards_of(case: Case) -> tuple[Backwards, ...]:
    """Those of steps in which every rank had the same number of them."""
    found = [Backwards(step=step.number, ranks=step.of("backward")) for step in steps_of(case)]
    return tuple(each for each in found if len({len(ops) for ops in each.ranks.values()}) == 1)


def terms_of(case: Case) -> dict[int, dict[int, Loss]]:
    """By step and rank."""
    return {each.step: terms for each in backwards_of(case) if (terms := each.terms())}


def averages_gradients(case: Case) -> bool:
    """Whether all ranks weigh equally in the gradients: DDP over all of them, or a reduction of the user's own."""
    return is_replicated(case.cell) or bool(reduced_names(case))


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weight of one counted row in the loss of each rank, of a step."""

    factors: dict[int, float]  # in front of the loss
    terms: dict[int, Loss]

    @property
    def each(self) -> dict[int, float]:
        return {
            rank: factor / (term.counted if (term := self.terms[rank]).mean and term.counted else 1)
            for rank, factor in self.factors.items()
        }

    @property
    def comparable(self) -> bool:
        """Whether every rank had as many rows; of batches of other sizes the ranks may be meant to weigh alike."""
        return len({term.rows for term in self.terms.values()}) == 1


def weights_of(case: Case) -> dict[int, Weights]:
    """By step, of losses that are one likelihood and nothing else."""
    found = {}
    for each in backwards_of(case):
        terms = each.terms()
        if terms and all(term.direct for term in terms.values()):
            factors = {rank: 1 / (ops[0].divisor or 1.0) for rank, ops in each.ranks.items()}
            found[each.step] = Weights(factors=factors, terms=terms)
    return found

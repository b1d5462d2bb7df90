"""The losses of the first steps, on all ranks: what each was divided by, averaged over, and compared with."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import averages_by_hand, steps_of
from nsadiag.analysis.relations.replication import is_replicated
from nsadiag.evidence.documents.operations import Loss, Operation


@dataclass(frozen=True, kw_only=True)
class Backwards:
    """The backwards of a step: by rank, in their order."""

    step: int
    ranks: dict[int, list[Operation]]

    def terms(self) -> dict[int, Loss]:
        """The one likelihood of each rank's only backward; none where a rank has several, or none."""
        found = self.all_terms()
        return (
            {rank: terms[0] for rank, terms in found.items()} if set(map(len, found.values())) == {1} else {}
        )

    def all_terms(self) -> dict[int, tuple[Loss, ...]]:
        """The likelihoods of each rank's only backward; none where a rank has several backwards."""
        if any(len(found) != 1 for found in self.ranks.values()):
            return {}
        return {rank: found[0].losses for rank, found in self.ranks.items()}

    def divided_sums(self) -> dict[int, tuple[set[float], float]]:
        """By rank, what the sums over its targets are divided by, and how many targets all its backwards have counted.

        None unless each backward's loss is such a sum and nothing else.
        """
        each = [o for found in self.ranks.values() for o in found]
        if any(len(o.losses) != 1 or not o.losses[0].direct or o.losses[0].mean for o in each):
            return {}
        return {
            rank: ({o.divisor or 1.0 for o in found}, sum(o.losses[0].counted or 0.0 for o in found))
            for rank, found in self.ranks.items()
        }


def backwards_of(case: Case) -> tuple[Backwards, ...]:
    """Those of steps in which every rank had the same number of them."""
    found = [Backwards(step=step.number, ranks=step.of("backward")) for step in steps_of(case)]
    return tuple(each for each in found if len({len(ops) for ops in each.ranks.values()}) == 1)


def terms_of(case: Case) -> dict[int, dict[int, Loss]]:
    """By step and rank."""
    return {each.step: terms for each in backwards_of(case) if (terms := each.terms())}


def averages_gradients(case: Case) -> bool:
    """Whether all ranks weigh equally in the gradients: DDP over all of them, or a reduction of the user's own."""
    return is_replicated(case.cell) or averages_by_hand(case)


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

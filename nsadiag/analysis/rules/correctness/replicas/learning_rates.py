"""Learning rates that a scheduler set differently on some ranks, so that equal gradients lead to different models."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.records import Place
from nsadiag.source.patterns.single_call import scheduler_step

CLOSE = 1e-9  # relative tolerance: all ranks compute their rates in the same way


@dataclass(frozen=True, kw_only=True)
class DifferingRates:
    """The first recorded step in which ranks used different learning rates."""

    step: int
    rates: dict[int, tuple[float, ...]]  # by rank, one for each parameter group
    odd: tuple[int, ...]  # the minority; all ranks if there is none
    place: Place | None  # the one line that steps a scheduler

    @property
    def says(self) -> str:
        """The difference, as a clause."""
        shown = "; ".join(
            f"rank {r}: {', '.join(f'{v:.4g}' for v in rates)}" for r, rates in sorted(self.rates.items())[:8]
        )
        return f"the ranks' learning rates differ ({shown})"

    @property
    def evidence(self) -> Claims:
        """The rates of that step, with their file."""
        return {f"{self.says} in step {self.step}": f"ranks/{self.odd[0]:05d}/replicas.jsonl"}


def differing_rates(cell: CellEvidence) -> DifferingRates | None:
    """The first step of one optimizer whose rates all ranks recorded and in which they differ."""
    moments: dict[tuple[int, ...], dict[int, tuple[int, tuple[float, ...]]]] = defaultdict(dict)
    for rank in cell.ranks:
        for row in rank.replicas:
            if row.rates and row.subject and row.since is not None:
                moments[(*row.subject, row.since)][rank.rank] = row.step, row.rates
    for moment in sorted(moments):
        by_rank = moments[moment]
        rates = {rank: values for rank, (_, values) in by_rank.items()}
        if (
            len(by_rank) == max(cell.world_size, 2)
            and len(set(map(len, rates.values()))) == 1
            and _differ(list(rates.values()))
        ):
            return DifferingRates(
                step=min(step for step, _ in by_rank.values()),
                rates=rates,
                odd=outlier_ranks(rates),
                place=scheduler_step(cell.code),
            )
    return None


def _differ(rates: list[tuple[float, ...]]) -> bool:
    return any(max(group) - min(group) > CLOSE * max(map(abs, group)) for group in zip(*rates, strict=True))

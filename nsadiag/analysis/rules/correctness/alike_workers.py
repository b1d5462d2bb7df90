"""Workers of data loaders that draw the same random numbers on every rank and in every epoch, seeded by their number alone."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.worker_seeds import seeded_by_number


def alike_workers(case: Case) -> Iterator[Draft | Declined]:
    """Only where every rank has had loaders with workers."""
    ranks = case.cell.ranks
    everywhere = all(any(loader.workers for loader in rank.loaders) for rank in ranks)
    if not ran_together(case.cell) or not everywhere:
        return
    loader = next(loader for loader in ranks[0].loaders if loader.workers)
    found = seeded_by_number(case.cell.code)
    if found is None:
        yield Declined(
            f"{loader.dataset}, read by {count(len(loader.workers), 'worker')}, draws nothing, or is seeded with more than a worker's number"
        )
        return
    claim = f"each of {len(ranks)} ranks has a {loader.dataset} with {len(loader.workers)} workers, whose __getitem__ draws random numbers"
    yield silent_error(
        case,
        f"Workers are seeded by their number alone at {locations.short(found)}: worker n of every rank draws the same random numbers, and again in each epoch.",
        {claim: f"{ranks[0].source}/loaders.json"},
        found,
        Where(step=0, phase="data"),
        strength=Strength.LIKELY,
    )


RULE = Rule(
    family="correctness",
    detected="Each rank's loader has workers whose worker_init_fn seeds by the worker's number alone, and a data set that draws random numbers",
    fix="Seed from torch.initial_seed(), which differs between workers and epochs, and seed the ranks differently; or leave worker_init_fn out.",
    check=alike_workers,
    keeps="samples",
    needs=("sources",),
    explained_by=("unstable_hash",),
)

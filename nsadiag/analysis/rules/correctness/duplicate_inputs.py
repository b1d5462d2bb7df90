"""Data parallelism over the same data: every rank's loader samples independently, with the same result.

A remark on a job that completed, not a failure: a benchmark or a smoke test may intend it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replication import has_parts, is_replicated
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.spans import listed

LEAST = 4  # snapshots at which all ranks had the same batch, another one each time
# The samplers that a loader creates by default, without regard to ranks.
OWN_SAMPLERS = ("RandomSampler", "SequentialSampler")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A remark added to the verdict of another rule."""

    sentence: str
    evidence: Claims
    fix: str


def same_batches(case: Case) -> Remark | None:
    """The remark, if DDP spans all ranks, nothing else divides the work, and no loader splits its data."""
    ranks, everyone = case.cell.ranks, case.cell.world_size
    if not ran_together(case.cell) or not is_replicated(case.cell) or not all(r.loaders for r in ranks):
        return None
    samplers = {str(loader.sampler) for rank in ranks for loader in rank.loaders}
    if not samplers <= set(OWN_SAMPLERS) or has_parts(case):
        return None
    looks = [{row.step: repr(row.tensors) for row in rank.given} for rank in ranks]
    steps = sorted(set.intersection(*map(set, looks)))
    alike = [step for step in steps if len({each[step] for each in looks}) == 1]
    if len({looks[0][step] for step in alike}) < LEAST or len(alike) < len(steps):
        return None
    loader = ranks[0].loaders[0]
    return Remark(
        sentence=(
            f"All ranks trained on the same batches: the model's inputs were equal on all of them at each of "
            f"{len(alike)} snapshots, so DDP averaged {everyone} times the same gradient."
        ),
        evidence={
            f"the inputs at steps {listed(alike)} have the same shapes and sums on all ranks, and differ from step to step": f"{ranks[0].source}/given.jsonl",
            f"the loader at {loader.place or 'an unknown line'} uses {' and '.join(sorted(samplers))}, which knows nothing of ranks": f"{ranks[0].source}/loaders.json",
        },
        fix="If ranks should see different data: give the loader a DistributedSampler (and call its set_epoch), or let each rank seed its own order.",
    )

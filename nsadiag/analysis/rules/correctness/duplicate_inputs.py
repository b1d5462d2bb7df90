"""Data parallelism over the same data: every rank's loader samples independently, with the same result.

A remark on a job that completed, not a failure: a benchmark or a smoke test may intend it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.ring.blackbox import Kind

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
    if not ran_together(case.cell):
        return None
    everyone = case.cell.world_size
    if not all(r.ddp and all(len(m.ranks) == everyone for m in r.ddp) for r in case.cell.ranks):
        return None
    samplers = {str(loader.sampler) for rank in case.cell.ranks for loader in rank.loaders}
    if not all(r.loaders for r in case.cell.ranks) or not samplers <= set(OWN_SAMPLERS) or divides(case):
        return None
    looks: list[dict[int, Any]] = [{row.step: row.tensors for row in r.given} for r in case.cell.ranks]
    steps = sorted(step for step in looks[0] if all(step in each for each in looks))
    alike = [step for step in steps if all(each[step] == looks[0][step] for each in looks)]
    if len({repr(looks[0][step]) for step in alike}) < LEAST or len(alike) < len(steps):
        return None
    loader = case.cell.ranks[0].loaders[0]
    return Remark(
        sentence=(
            f"All ranks trained on the same batches: the model's inputs were equal on all of them at each of "
            f"{len(alike)} snapshots, so DDP averaged {everyone} times the same gradient."
        ),
        evidence={
            f"the inputs at steps {', '.join(map(str, alike[:8]))} have the same shapes and sums on all ranks, and differ from step to step": f"{case.cell.ranks[0].source}/given.jsonl",
            f"the loader at {loader.place or 'an unknown line'} uses {' and '.join(sorted(samplers))}, which knows nothing of ranks": f"{case.cell.ranks[0].source}/loaders.json",
        },
        fix="If ranks should see different data: give the loader a DistributedSampler (and call its set_epoch), or let each rank seed its own order.",
    )


def divides(case: Case) -> bool:
    """Whether ranks divide a batch by sequence, layer or expert, in groups of their own."""
    calls = case.events[case.events.kind == Kind.COLLECTIVE]
    apart = ~calls.group.str.startswith("default_pg") & ((calls.group != "") | (calls.site != ""))
    return bool(apart.any() or calls.name.str.contains("all_to_all|send|recv").any())

"""Data parallelism over the same data: every rank's loader draws for itself, and all draw alike.

A remark on a job that completed, and no accusation: a benchmark, or a test whether a model learns at all, may mean it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.ring.blackbox import Kind

LEAST = 4  # looks at which all ranks had the same, each time another batch
# What a loader makes by itself where it is told nothing of ranks.
OWN_SAMPLERS = ("RandomSampler", "SequentialSampler")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """An addition to a verdict of another rule."""

    sentence: str
    evidence: Claims
    fix: str


def same_batches(case: Case) -> Remark | None:
    """Only where DDP spans all ranks and nothing else divides the work, and no loader shares its data out."""
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
            f"All ranks trained on the same batches: what the model was given was equal on all of them at each of "
            f"{len(alike)} snapshots, so DDP averaged {everyone} times the same gradient."
        ),
        evidence={
            f"the tensors given at steps {', '.join(map(str, alike[:8]))} have the same shapes and sums on all ranks, and others at each step": f"{case.cell.ranks[0].source}/given.jsonl",
            f"the loader at {loader.place or 'an unknown line'} uses {' and '.join(sorted(samplers))}, which knows nothing of ranks": f"{case.cell.ranks[0].source}/loaders.json",
        },
        fix="If ranks are meant to see different data: give the loader a DistributedSampler (and call its set_epoch), or let each rank seed its own order.",
    )


def divides(case: Case) -> bool:
    """Whether ranks of other groups share a batch: by sequence, by layer, by expert."""
    calls = case.events[case.events.kind == Kind.COLLECTIVE]
    apart = ~calls.group.str.startswith("default_pg") & ((calls.group != "") | (calls.site != ""))
    return bool(apart.any() or calls.name.str.contains("all_to_all|send|recv").any())

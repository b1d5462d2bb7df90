"""Replicas of one model that exchange no gradients at all: a wrapper over a group of one rank, or only a split data set."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import SMALL, activation_places, noted, steps_of
from nsadiag.analysis.relations.invariants.tensors import is_constant, parameters_of
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replica_sums import Drift, drift
from nsadiag.analysis.relations.replication import wrapped_at
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Place, Where
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import listed
from nsadiag.source.patterns.single_call import last_call


def unexchanged_gradients(case: Case) -> Iterator[Draft | Declined]:
    """Only where replicas are intended: the same initial model on all ranks, and a wrapper or a sampler that splits the data."""
    if not ran_together(case.cell):
        return
    wrapper = _wrapped_alone(case)
    exchanged = _exchanged(case, activation_places(case) if wrapper else frozenset())
    if exchanged:
        yield Declined(f"ranks exchange tensors while they train: {exchanged}")
        return
    drifted = drift(case.cell) or _tensors_apart(case)
    if drifted is None:
        yield Declined(
            f"the models of {everyone(case.cell)} are equal wherever they were compared, or differ from the start"
        )
    elif wrapper and not (drifted.from_start and _exchanged(case, frozenset())):
        name, place = wrapper
        yield _draft(
            case,
            drifted,
            f"{name} gets a group in which each rank is alone: no gradient is ever exchanged, and each rank trains a model of its own.",
            f"{name} over one rank on each of {case.cell.world_size} ranks",
            place,
            f"Pass {name} the group (or mesh dimension) over which the model is replicated; by default it takes all ranks.",
        )
    elif (
        not drifted.from_start
        and (shared := _shares(case))
        and not any(r.ddp or r.units for r in case.cell.ranks)
    ):
        yield _draft(
            case,
            drifted,
            "The ranks split one data set, but exchange no gradients: each trains a model of its own on its share.",
            shared,
            steps_of(case)[0].on_first("forward", "step")[0].place,
            "Wrap the model in DDP, or average the gradients before each optimizer.step().",
        )


def _exchanged(case: Case, activations: frozenset[str]) -> str | None:
    """A collective of user code or a wrapper that exchanges more than a few numbers once training has begun.

    Those at lines that exchange `activations` keep no replicas equal.
    """
    ranks = case.cell.ranks
    # FSDP groups of one rank exchange nothing.
    alone = {o.name for r in ranks for o in r.settings.groups if len(o.ranks) == 1}
    alone |= {unit.group for r in ranks for unit in r.units if len(unit.ranks) == 1}
    calls = case.begun(Kind.COLLECTIVE)
    large = calls[
        (calls.step >= 1)
        & ((calls.b > SMALL) | calls.name.str.contains("object"))
        & ~calls.name.str.contains("barrier|store|wait")
        & ~calls.site.isin(activations)
        & ~calls.group.isin(alone)
    ]
    if len(large):
        row = large.iloc[0]
        return f"{row['name']} of {int(row.b)} elements at step {int(row.step)}"
    wide = any(len(model.ranks) != 1 for r in ranks for model in r.ddp)
    return "a model is wrapped in DDP over several ranks" if wide else None


def _tensors_apart(case: Case) -> Drift | None:
    """Divergence of models sharded over one rank, whose sums are not recorded, by the checksums of tensors."""
    for copies in parameters_of(case):
        if copies.held and not copies.is_kept and not is_constant(copies.first):
            step, values = copies.parted_at
            return Drift(
                step=step,
                wraps=0,
                since=step,
                parameter=copies.name,
                values={rank: value.total for rank, value in values.items()},
                from_start=False,
                odd=tuple(values),
                gap=0.0,
            )
    return None


def _wrapped_alone(case: Case) -> tuple[str, Place | str | None] | None:
    ranks = case.cell.ranks
    if all(r.ddp for r in ranks):
        return "DistributedDataParallel", wrapped_at(case)
    if all(r.units and all(len(u.ranks) == 1 for u in r.units) for r in ranks):
        name = "fully_shard" if ranks[0].units[0].kind == "FSDP2" else "FullyShardedDataParallel"
        return name, last_call(case.cell.code, name)
    return None


def _shares(case: Case) -> str | None:
    """Samplers whose shares are divided among exactly these ranks."""
    everyone = case.cell.world_size
    each = [{(o.replica, o.replicas) for _, o in noted(rank, "epoch")} for rank in case.cell.ranks]
    shares = sorted({share for found in each for share in found})
    apart = all(len(found) == 1 for found in each) and len(shares) == everyone and bool(steps_of(case))
    if not apart or any(of != everyone for _, of in shares):
        return None
    return f"a DistributedSampler on each rank, with share {listed(n for n, _ in shares)} of {everyone}"


def _draft(case: Case, drifted: Drift, summary: str, claim: str, at: Place | str | None, fix: str) -> Draft:
    return silent_error(
        case,
        summary,
        {claim: f"{case.cell.ranks[0].source}/settings.json", drifted.says: drifted.source},
        at,
        Where(parameter=drifted.parameter, step=drifted.step),
        fix,
    )


RULE = Rule(
    family="correctness",
    detected="Models diverge on ranks that exchange no tensors at all, although DDP or FSDP wraps them (over a group of one rank) or a DistributedSampler splits their data",
    fix="Wrap the model in DDP over all ranks, or average the gradients before each optimizer.step().",
    check=unexchanged_gradients,
    keeps="copies",
    needs=("black_boxes",),
    explained_by=("control_mismatch",),
)

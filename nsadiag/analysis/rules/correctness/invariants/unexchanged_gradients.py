"""Replicas of one model that exchange no gradients at all: a wrapper over a group of one rank, or only a split data set."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import SMALL, activation_places, steps_of
from nsadiag.analysis.relations.invariants.tensors import is_constant, kept_equal, keys_of, looks_of, timeline
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replica_sums import Drift, drift
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
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
        yield Declined("the ranks' models are equal wherever they were compared, or differ from the start")
    elif wrapper and not (drifted.from_start and _exchanged(case, frozenset())):
        name, place = wrapper
        yield _draft(
            case,
            drifted,
            f"{name} gets a group in which each rank is alone: no gradient is ever exchanged, and each rank trains a model of its own.",
            place,
            f"{name} over one rank on each of {case.cell.world_size} ranks",
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
            _stepped_at(case),
            shared,
            "Wrap the model in DDP, or average the gradients before each optimizer.step().",
        )


def _exchanged(case: Case, activations: frozenset[str]) -> str | None:
    """A collective of user code or a wrapper that exchanges more than a few numbers once training has begun.

    Those at lines that exchange `activations` keep no replicas equal.
    """
    calls = case.events[(case.events.kind == Kind.COLLECTIVE) & (case.events.phase == Phase.BEGIN)]
    large = calls[
        (calls.step >= 1)
        & ((calls.b > SMALL) | calls.name.str.contains("object"))
        & ~calls.name.str.contains("barrier|store|wait")
    ]
    large = large[~large.site.isin(activations)]
    alone = {o.name for r in case.cell.ranks for o in r.settings.groups if len(o.ranks) == 1}
    large = large[~large.group.isin(alone)]
    # FSDP groups of one rank exchange nothing.
    large = large[~large.group.isin({u.group for r in case.cell.ranks for u in r.units if len(u.ranks) == 1})]
    if len(large):
        row = large.iloc[0]
        return f"{row['name']} of {int(row.b)} elements at step {int(row.step)}"
    wide = [m for r in case.cell.ranks for m in r.ddp if len(m.ranks) != 1]
    return "a model is wrapped in DDP over several ranks" if wide else None


def _tensors_apart(case: Case) -> Drift | None:
    """Divergence of models sharded over one rank, whose sums are not recorded, by the checksums of tensors."""
    looks = looks_of(case)
    for key in keys_of(looks):
        at = timeline(looks, key)
        held = kept_equal(at)
        if 0 < held < len(at) and not is_constant(at[0][1][min(at[0][1])]):
            step, values = at[held]
            totals = {rank: value.total for rank, value in values.items()}
            return Drift(
                step=step,
                wraps=0,
                since=step,
                parameter=key[1],
                values=totals,
                from_start=False,
                odd=tuple(totals),
                gap=0.0,
            )
    return None


def _wrapped_alone(case: Case) -> tuple[str, Place | None] | None:
    if all(r.ddp for r in case.cell.ranks):
        wraps = case.events[(case.events.kind == Kind.WRAP) & (case.events.site != "")]
        at = locations.of_text(str(wraps.site.iloc[-1])) if len(wraps) else None
        return "DistributedDataParallel", at
    if all(r.units and all(len(u.ranks) == 1 for u in r.units) for r in case.cell.ranks):
        fsdp2 = case.cell.ranks[0].units[0].kind == "FSDP2"
        name = "fully_shard" if fsdp2 else "FullyShardedDataParallel"
        return name, last_call(case.cell.code, name)
    return None


def _shares(case: Case) -> str | None:
    """Samplers whose shares are divided among exactly these ranks."""
    epochs = {
        r.rank: {(o.replica, o.replicas) for row in r.observed for o in row.operations if o.kind == "epoch"}
        for r in case.cell.ranks
    }
    everyone = case.cell.world_size
    if all(len(found) == 1 for found in epochs.values()) and steps_of(case):
        shares = {next(iter(found)) for found in epochs.values()}
        if len(shares) == everyone and all(of == everyone for _, of in shares):
            return f"a DistributedSampler on each rank, with share {', '.join(str(n) for n, _ in sorted(shares)[:8])} of {everyone}"
    return None


def _stepped_at(case: Case) -> Place | None:
    steps = steps_of(case)
    found = [o for o in next(iter(steps[0].ranks.values())) if o.kind in ("forward", "step")] if steps else []
    return locations.of_text(found[0].place) if found else None


def _draft(case: Case, drifted: Drift, summary: str, at: Place | None, claim: str, fix: str) -> Draft:
    return Draft(
        strength=Strength.STRONG,
        summary=summary,
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
        where=Where(parameter=drifted.parameter, step=drifted.step).at(at),
        evidence={claim: f"{case.cell.ranks[0].source}/settings.json", drifted.says: drifted.source},
        fix=fix,
    )


RULE = Rule(
    name="unexchanged_gradients",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="Models diverge on ranks that exchange no tensors at all, although DDP or FSDP wraps them (over a group of one rank) or a DistributedSampler splits their data",
    fix="Wrap the model in DDP over all ranks, or average the gradients before each optimizer.step().",
    check=unexchanged_gradients,
    needs=("black_boxes",),
    explained_by=("control_mismatch",),
    confused_with=("healthy",),
)

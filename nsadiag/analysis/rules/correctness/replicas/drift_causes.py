"""Causes of diverged replicas, by the ranks' other records: one function a cause, the most direct first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.collectives import elements_of
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.replica_sums import Drift, kept_equal, summed, written_alone
from nsadiag.analysis.relations.replication import MOST_STEPS
from nsadiag.analysis.rules.correctness.replicas.checkpoint_loads import OF_OPTIMIZER, uneven_load
from nsadiag.analysis.rules.correctness.replicas.optimizer_settings import DifferingSetting, differing_setting
from nsadiag.analysis.rules.correctness.replicas.optimizer_steps import skipped_step
from nsadiag.analysis.rules.correctness.replicas.unsynced_gradients import WRAPPER, unsynced_steps
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.documents.training import WrappedModel
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.rank_conditions import write_on_one_rank
from nsadiag.source.patterns.single_call import only_assignment, seeded_by_rank

SWITCH = "require_backward_grad_sync"
OF_LOADS = "Load before DDP wraps the model (DDP then copies rank 0's parameters to all), or load on every rank; an optimizer's, scheduler's or scaler's state on every rank in any case."


@dataclass(frozen=True, kw_only=True)
class DriftCause:
    """A cause, as a clause; `odd` are the outliers, if the cause identifies them."""

    says: str
    fix: str
    place: Place | None = None
    odd: tuple[int, ...] | None = None
    more: Claims = field(default_factory=dict)


def cause_in_ddp(case: Case, found: Drift, among: frozenset[str]) -> DriftCause:
    """The cause where DDP wraps the model. `among`: the parameters that it holds."""
    idle = not _were_reduced(case, found.parameter) and not kept_equal(case.cell, among)
    return (
        _unsynced(case, found, idle)
        or (_switched_off(case) if idle else None)
        or (_passed_by(case) if idle else None)
        or _left(case, case.cell.ranks[0].rank, found)
        or _loaded(case, found)
        or cause_in_step(case, found.step)
        or _written(case, found)
    )


def cause_by_hand(case: Case, found: Drift) -> DriftCause:
    """The cause where the job averages its gradients itself."""
    return _own_start(case, found) or cause_in_step(case, found.step) or _written(case, found)


def cause_in_step(case: Case, until: int) -> DriftCause | None:
    """A step that some optimizers left out before step `until`, or a setting of theirs that differs until then."""
    return _skipped(case, until) or _at_other_settings(case, until)


def _unsynced(case: Case, found: Drift, idle: bool) -> DriftCause | None:
    unsynced = unsynced_steps(case, case.cell.ranks[0].rank, 0 if idle else found.step)
    if not unsynced or (idle and not unsynced.all):
        return None
    return DriftCause(
        says=unsynced.says,
        place=unsynced.place,
        fix="Leave no_sync for the last forward and backward before every optimizer.step(), also if an epoch ends during accumulation.",
    )


def _switched_off(case: Case) -> DriftCause | None:
    """A wrapper that is used but set to reduce nothing."""
    events = case.events[(case.events.kind == Kind.FORWARD) & (case.events.name == WRAPPER)]
    place = only_assignment(case.cell.code, SWITCH)
    if place is None or events["rank"].nunique() < len(case.cell.ranks):
        return None
    return DriftCause(
        says=f"{SWITCH} is False at every backward, and no gradient was ever reduced",
        place=place,
        fix="Set it to True before the forward of the last micro-batch of each step, or use no_sync() for the others.",
    )


def _passed_by(case: Case) -> DriftCause:
    return DriftCause(
        says="its wrapper is bypassed, so no gradient was ever reduced and each rank trains a model of its own",
        place=_forward_place(case, case.cell.ranks[0].rank),
        fix="Call the wrapped model itself, model(x), not model.module(x) or one of its methods: DDP reduces only what goes through its forward.",
    )


def _left(case: Case, rank: int, found: Drift) -> DriftCause | None:
    """A wrapper that was used for some steps and is bypassed since, while backwards continue."""
    mine = case.events_of(rank)
    mine = mine[mine.phase == Phase.BEGIN]
    wrapped = mine[(mine.kind == Kind.FORWARD) & (mine.name == WRAPPER)]
    backwards = mine[mine.kind == Kind.BACKWARD]
    through = set(wrapped.step)
    bare = sorted(set(backwards.step) - through)
    if not bare or not through or not min(through) < bare[0] < found.step:
        return None
    since = backwards[backwards.step >= bare[0]]
    if len(bare) < MOST_STEPS * since.step.nunique() or bare[0] - 1 not in through:
        return None
    before = set(backwards.site[backwards.step < bare[0]])
    # Within one loop the model is called at the same line; another loop shows by its backward alone.
    at = wrapped.site[wrapped.step < bare[0]] if set(since.site) <= before else since.site
    return DriftCause(
        says=f"from step {int(bare[0])} on its wrapper is bypassed, and each rank trains a model of its own",
        place=locations.of_text(str(at.iloc[-1])),
        fix="Keep calling the wrapped model itself, model(x); use model.module for saving and evaluation, in a separate variable.",
    )


def _loaded(case: Case, found: Drift) -> DriftCause | None:
    """A load on some ranks only, which breaks equality before the first step or right after it."""
    if found.since > 1:
        return None
    alone = uneven_load(case, before_wrap=not found.from_start, wraps=found.wraps)
    if alone is None:
        return None
    if alone.op == OF_OPTIMIZER:
        # All ranks read the checkpoint: the wrong ones left out a part of it.
        odd = tuple(r.rank for r in case.cell.ranks if r.rank not in alone.by)
        did = "did not load the optimizer's state, and the others did"
    else:
        odd = alone.by
        did = f"loaded a checkpoint{' after the wrap' if found.from_start else ''}, and the others did not"
    return DriftCause(says=f"rank {case.cell.names(odd)} {did}", place=alone.place, odd=odd, fix=OF_LOADS)


def _own_start(case: Case, found: Drift) -> DriftCause | None:
    if not found.from_start:
        return None
    return DriftCause(
        says="they were never equal",
        place=seeded_by_rank(case.cell.code),
        fix="Start from one model: broadcast the parameters from rank 0 before the first step (DDP does), or build it from one seed.",
    )


def _skipped(case: Case, until: int) -> DriftCause | None:
    otherwise = skipped_step(case, until)
    if otherwise is None:
        return None
    return DriftCause(
        says=otherwise.says(case.cell.names(otherwise.ranks)),
        place=otherwise.place,
        odd=otherwise.ranks,
        more=otherwise.evidence(case.cell),
        fix=otherwise.fix,
    )


def _at_other_settings(case: Case, until: int) -> DriftCause | None:
    apart = differing_setting(case)
    return of_setting(apart) if apart and apart.step <= until else None


def of_setting(apart: DifferingSetting) -> DriftCause:
    """A hyperparameter that differs, as a cause."""
    return DriftCause(
        says=f"{apart.setting} is {apart.says}",
        place=apart.place,
        odd=apart.ranks,
        more={f"in step {apart.step} {apart.setting} is {apart.says}": apart.source},
        fix="Give every rank the same optimizer settings. A scheduler that follows a metric: all_reduce the metric (or take rank 0's) before scheduler.step(metric), and step it equally often on all ranks.",
    )


def _written(case: Case, found: Drift) -> DriftCause:
    wrote = written_alone(case.cell, found)
    odd = tuple(sorted(wrote)) or None
    only = (
        f"something besides the optimizer writes into them on rank {case.cell.names(odd)} only" if odd else ""
    )
    times = ", ".join(f"rank {rank}: {n} times more" for rank, n in sorted(wrote.items()))
    claim = f"shortly before step {found.step} {found.parameter} was modified more often on some ranks than on others ({times}), and until then equally often on all"
    return DriftCause(
        says=only or f"{found.parameter} is not kept equal",
        odd=odd,
        place=write_on_one_rank(case.cell.code),
        more={claim: found.source} if wrote else {},
        fix="Reduce every gradient before the optimizer uses it, and change parameters on all ranks alike.",
    )


def _models_of(cell: CellEvidence, rank: RankEvidence, parameter: str) -> Sequence[WrappedModel]:
    """The DDP models that hold the parameter: by its name, or by the number of compared elements; all if neither decides."""
    whole = summed(cell).get("", 0)
    named = [m for m in rank.ddp if parameter in {p.full_name for p in m.parameters}]
    sized = [m for m in rank.ddp if sum(bucket.elements for bucket in m.buckets) == whole]
    return named or sized or rank.ddp


def _were_reduced(case: Case, parameter: str) -> bool:
    """Whether a dump shows an all_reduce of a bucket's size; without dumps, whether DDP counted reductions."""
    models = _models_of(case.cell, case.cell.ranks[0], parameter)
    sizes = {bucket.elements for m in models for bucket in (*m.buckets, *m.rebuilt_buckets)}
    calls = case.calls
    shown = any(
        elements_of(row) in sizes for row in calls.loc[calls.op.str.contains("all_?reduce"), "input_sizes"]
    )
    rebuilt = any(m.rebuilt_buckets for r in case.cell.ranks for m in _models_of(case.cell, r, parameter))
    return shown or rebuilt


def _forward_place(case: Case, rank: int) -> Place | None:
    """The last forward's line, if possible of a model that is not wrapped."""
    mine = case.events_of(rank, Kind.FORWARD)
    mine = mine[mine.site != ""]
    sites = [*mine.site[mine.name == WRAPPER], *mine.site[mine.name != WRAPPER]]
    return locations.of_text(str(sites[-1])) if sites else None

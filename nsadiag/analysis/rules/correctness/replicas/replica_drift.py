"""Data-parallel replicas that diverged although the job meant to keep them equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, reduced_names, source, steps_of
from nsadiag.analysis.relations.manual_averaging import are_most, averaged
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replica_sums import Drift, counts_since_wrap, drift, kept_equal, summed
from nsadiag.analysis.rules.correctness.replicas.drift_causes import (
    OF_RATES,
    OF_UNKNOWN,
    UNKNOWN_TO_DDP,
    cause_of_drift,
    has_parts,
)
from nsadiag.analysis.rules.correctness.replicas.learning_rates import differing_rates
from nsadiag.analysis.rules.correctness.replicas.optimizer_settings import differing_setting
from nsadiag.analysis.rules.correctness.replicas.optimizer_steps import skipped_step
from nsadiag.analysis.rules.correctness.replicas.unwrapped_parameters import unwrapped_drift
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.rank_conditions import frozen_on_one_rank, write_on_one_rank
from nsadiag.source.patterns.single_call import (
    last_call,
    only_assignment,
    only_keyword,
    seeded_by_rank,
    thawed,
)

FAR = 1e-3  # of the magnitude: the least difference of a buffer's sums at the last snapshot
IGNORED = "ignored_params"  # of fully_shard


def replica_drift(case: Case) -> Iterator[Draft | Declined]:
    """Only where equal replicas are intended: wrapped in DDP, or gradients averaged by hand in every step."""
    if not ran_together(case.cell):
        return
    yield from _wrapped(case)
    yield from _by_hand(case)
    yield from _frozen_apart(case)
    yield from _beside_units(case)
    looks = sum(len(rank.replicas) for rank in case.cell.ranks)
    yield Declined(
        f"the replicas are equal as intended, at {looks} snapshots of the sums of their parameters"
    )


def _wrapped(case: Case) -> Iterator[Draft]:
    if not all(r.ddp for r in case.cell.ranks) or any(m.comm_hook for r in case.cell.ranks for m in r.ddp):
        return
    # DDP keeps replicas equal within its group; other groups hold another part of the model, or other data.
    if any(
        len(m.ranks or range(case.cell.world_size)) < case.cell.world_size
        for r in case.cell.ranks
        for m in r.ddp
    ):
        return
    if wrapped_at_other_steps(case) and not counts_since_wrap(case.cell):
        return
    names = {p.full_name for m in case.cell.ranks[0].ddp for p in m.parameters}
    # Parts of the model that are called on their own have other names.
    known = {n for n in summed(case.cell) if n and any(d == n or d.endswith("." + n) for d in names)}
    found = drift(case.cell, frozenset(known)) or _by_a_step_less(case, frozenset(known))
    if found is None:
        yield from _at_other_rates(case.cell, "The model is wrapped in DDP")
        yield from _not_reduced(case)
        yield from _beside_the_wrapper(case)
        yield from _not_broadcast(case.cell)
        return
    why = cause_of_drift(case, found, frozenset(known))
    if why.odd is not None:
        found = dataclasses.replace(found, odd=why.odd)
    yield _finding(found, why.says, why.place, why.fix, more=why.more)


def _at_other_rates(cell: CellEvidence, meant: str) -> Iterator[Draft]:
    """A drift after the last comparison, known from different learning rates alone."""
    found = differing_rates(cell)
    if found is None:
        return
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{meant}, but the replicas diverge: {found.says}.",
        guilty_ranks=found.odd,
        where=Where(step=found.step).at(found.place),
        evidence={**found.evidence},
        fix=OF_RATES,
    )


def _by_a_step_less(case: Case, among: frozenset[str]) -> Drift | None:
    """The drift of ranks with different numbers of steps, if a skipped step is the cause."""
    found = drift(case.cell, among, in_step=False)
    return found if found and skipped_step(case, found.step) else None


def _not_reduced(case: Case) -> Iterator[Draft]:
    """Parameters of the model and the optimizer that were added or unfrozen after the wrap, so that DDP does not reduce them."""
    found = None if has_parts(case) else drift(case.cell, left_out=True)
    if found:
        says = f"The model is wrapped in DDP, but {found.parameter} differs from step {found.step} on: {UNKNOWN_TO_DDP}."
        fix = f"{OF_UNKNOWN} If separate copies are intended, ignore this."
        module = found.parameter.rpartition(".")[0].rpartition(".")[2]
        at = thawed(case.cell.code) or only_assignment(case.cell.code, module)
        yield _finding(found, says, at, fix, strength=Strength.LIKELY)


def _beside_the_wrapper(case: Case) -> Iterator[Draft]:
    """Parameters of the same optimizer outside the model that DDP wraps."""
    found = None if has_parts(case) else unwrapped_drift(case.cell)
    if found:
        says = f"{found.parameter} is in no model that DDP wraps: it is equal on all ranks at first, and differs from step {found.step} on, since nothing reduces its gradient."
        fix = "Wrap the whole model in DDP, not a part of it, or reduce the rest by hand. If separate copies are intended, ignore this."
        yield _finding(found, says, _wrap_place(case), fix, strength=Strength.WEAK)


def _wrap_place(case: Case) -> Place | None:
    wraps = case.events[(case.events.kind == Kind.WRAP) & (case.events.site != "")]
    return locations.of_text(str(wraps.site.iloc[-1])) if len(wraps) else None


def _not_broadcast(cell: CellEvidence) -> Iterator[Draft]:
    """A persistent buffer that diverges: a codebook, a memory, averages that forward uses."""
    found, last = drift(cell, of="buffers"), drift(cell, of="buffers", latest=True)
    # A value that a rank sets once is a constant; a codebook changes in the first forward, before the first snapshot.
    if found is None or last is None or last.gap < FAR or found.step == last.step:
        return
    if found.parameter == last.parameter and set(found.values.values()) & set(last.values.values()):
        return
    says = f"The parameters of the model in DDP are equal on all ranks, and its buffer {last.parameter} is not, from step {found.step} on: DDP does not broadcast buffers (broadcast_buffers=False), and nothing else keeps it equal."
    fix = "Reduce the updates of the buffer (all_reduce the counts and sums), or leave broadcast_buffers on. If separate copies are intended, ignore this."
    yield _finding(last, says, None, fix, strength=Strength.WEAK)


def wrapped_at_other_steps(case: Case) -> bool:
    """Whether ranks made different numbers of steps before the wrap: equal numbers then mean different steps."""
    wraps = case.events[(case.events.kind == Kind.WRAP) & (case.events.phase == Phase.BEGIN)]
    return bool(wraps.groupby("rank").step.min().nunique() > 1)


def _by_hand(case: Case) -> Iterator[Draft]:
    names, at = averaged(case)
    if any(r.ddp for r in case.cell.ranks):
        return
    if not are_most(case.cell, names):
        # Parameters that change and stay equal on all ranks are averaged in some way.
        kept = kept_equal(case.cell)
        if are_most(case.cell, kept) and not any(r.units for r in case.cell.ranks):
            yield from _left_out(case, kept, None)
        return
    found = drift(case.cell, names)
    if found is None:
        yield from _at_other_rates(case.cell, "Gradients are averaged in every step")
        yield from _left_out(case, names, at)
    elif found.from_start:
        said = f"Gradients are averaged in every step, but the replicas were never equal: {found.parameter} differs before the first step."
        fix = "Start from one model: broadcast the parameters from rank 0 before the first step (DDP does), or build it from one seed."
        yield _finding(found, said, seeded_by_rank(case.cell.code) or at, fix)
    elif otherwise := skipped_step(case, found.step):
        odd = dataclasses.replace(found, odd=otherwise.ranks)
        said = f"Gradients are averaged in every step, but the replicas differ from step {found.step} on: {otherwise.says(case.cell.names(odd.odd))}."
        more = otherwise.evidence(case.cell)
        yield _finding(odd, said, otherwise.place or at, otherwise.fix, more=more)
    else:
        apart = differing_setting(case)
        why = f"{apart.setting} is {apart.says}" if apart else f"{found.parameter} is not kept equal"
        said = (
            f"Gradients are averaged in every step, but the replicas differ from step {found.step} on: {why}."
        )
        fix = "Reduce every gradient before the optimizer uses it, and give every rank the same optimizer settings."
        written = apart.place if apart else write_on_one_rank(case.cell.code)
        yield _finding(found, said, written or at, fix)


def _beside_units(case: Case) -> Iterator[Draft]:
    """Parameters outside FSDP's units: every rank trains them whole, and nothing reduces them."""
    # FSDP1's shards look like any tensor; FSDP2's are DTensors, and are not compared.
    if not all(r.units and all(unit.kind == "FSDP2" for unit in r.units) for r in case.cell.ranks):
        return
    if any(r.ddp for r in case.cell.ranks) or has_parts(case) or averaged(case)[0]:
        return
    found = drift(case.cell)
    if found is None or found.from_start:
        return
    ignored = only_keyword(case.cell.code, IGNORED)
    yield _finding(
        found,
        f"{found.parameter} is {f'not held by fully_shard, which is given {IGNORED}' if ignored else 'in none of the modules given to fully_shard'}: it is equal on all ranks at first, and differs from step {found.step} on, since nothing reduces its gradient.",
        ignored or last_call(case.cell.code, "fully_shard"),
        "Reduce the gradients of what fully_shard ignores (all_reduce, divided by the ranks) before the optimizer's step, or shard it with a policy of its own (MixedPrecisionPolicy)."
        if ignored
        else "Call fully_shard on the whole model too, after its blocks, so that the rest is sharded and reduced with the root.",
        strength=Strength.LIKELY,
    )


def _left_out(case: Case, reduced: frozenset[str], at: Place | None) -> Iterator[Draft]:
    """A parameter that all ranks start with equally and whose gradient is never averaged, while most are."""
    sizes = summed(case.cell)
    whole = sizes.pop("", 0)
    if has_parts(case):
        return
    if 2 * sum(sizes[name] for name in reduced) < whole:
        return
    beside = frozenset(sizes) - reduced
    if _are_modules(beside, reduced):
        return
    found = drift(case.cell, beside)
    if found is None or found.from_start:
        return
    yield _finding(
        found,
        f"Gradients are averaged in every step, but not that of {found.parameter}: it is equal on all ranks at first, and differs from step {found.step} on.",
        at,
        "Reduce every gradient before the optimizer uses it; if this parameter is meant to differ between ranks, ignore this.",
        strength=Strength.WEAK,
    )


def _frozen_apart(case: Case) -> Iterator[Draft]:
    """Averaged gradients of parameters that some rank has frozen."""
    steps = steps_of(case)
    each = {
        rank.rank: {(o.held, o.of) for s in steps for o in s.of("step")[rank.rank]}
        for rank in case.cell.ranks
    }
    if len(steps) < LEAST or not reduced_names(case) or any(len(found) != 1 for found in each.values()):
        return
    counts = {rank: next(iter(found)) for rank, found in each.items()}
    if len({of for _, of in counts.values()}) > 1 or len({held for held, _ in counts.values()}) == 1:
        return
    shown = ", ".join(f"rank {rank}: {held} of {of}" for rank, (held, of) in list(counts.items())[:8])
    fewest = min(held for held, _ in counts.values())
    yield Draft(
        strength=Strength.STRONG,
        summary=f"Gradients are averaged over the ranks, but the ranks do not train the same parameters ({shown}): a rank that froze one contributes nothing to its average.",
        guilty_ranks=tuple(rank for rank, (held, _) in counts.items() if held == fewest),
        where=Where(step=steps[0].number).at(frozen_on_one_rank(case.cell.code)),
        evidence={f"parameters of the optimizer that require a gradient: {shown}": source(case)},
        fix="Freeze and unfreeze parameters on all ranks alike.",
    )


def _are_modules(beside: frozenset[str], reduced: frozenset[str]) -> bool:
    """Whether whole modules are not reduced: a head or an adapter may differ between ranks by design, a single weight not."""
    return not {name.rpartition(".")[0] for name in beside} & {name.rpartition(".")[0] for name in reduced}


def _finding(
    found: Drift,
    summary: str,
    at: Place | None,
    fix: str,
    strength: Strength = Strength.STRONG,
    more: Claims | None = None,
) -> Draft:
    return Draft(
        strength=strength,
        summary=summary,
        guilty_ranks=found.odd,
        where=Where(parameter=found.parameter, step=found.step).at(at),
        evidence={
            found.says: found.source,
            f"the largest difference is {found.gap:.1e} of the parameter's magnitude; synchronized replicas are equal to the last bit": found.source,
            **(more or {}),
        },
        fix=fix,
    )


RULE = Rule(
    name="replica_drift",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="Sums of the parameters differ between replicas that were meant to be equal. Either DDP wraps them; also what was put into the model or unfrozen after the wrap, and what the same optimizer trains besides the wrapped model. The guilty rank is one that skipped an optimizer step (by a branch, or by a gradient scaler that saw only its own gradients), did not load its state, got another learning rate from a scheduler (also after the last snapshot of the sums), or alone has parameters that something besides the optimizer writes. Or gradients are averaged by hand in every step before the optimizer uses them, whole, one by one or in buckets, or most of them are kept equal in another way; models that are averaged at the end or now and then differ on purpose. Or a buffer that the model saves differs where DDP broadcasts none",
    fix="Reduce every gradient before the optimizer uses it, and change parameters on all ranks alike.",
    check=replica_drift,
    needs=("black_boxes",),
    explained_by=("control_mismatch", "broken_equalities", "reduce_operations", "unexchanged_gradients"),
    confused_with=("healthy",),
)

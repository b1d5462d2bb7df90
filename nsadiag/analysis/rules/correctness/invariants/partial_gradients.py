"""Shared parameters of a split model that drift, since each rank's gradient is only partial or of another batch."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    Step,
    couples,
    reduces_gradients,
    source,
    steps_of,
    values_of,
)
from nsadiag.analysis.relations.invariants.tensors import (
    Copies,
    differ,
    equal,
    inputs_differ,
    inputs_of,
    is_constant,
    looks_of,
    sums,
)
from nsadiag.analysis.rules.correctness.parts.split_model import split_of
from nsadiag.analysis.rules.correctness.replicas.optimizer_settings import differing_setting
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Call, Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.single_call import last_call, only_use


def partial_gradients(case: Case) -> Iterator[Draft | Declined]:
    """Only if each forward exchanges activations, and some parameters differ from the start while others are equal:
    the model is then split on purpose, and the equal parameters are shared.
    """
    steps = steps_of(case)
    rows = [operations for step in steps for operations in step.ranks.values()]
    looks, coupled = len(looks_of(case)), sum(any(map(couples, operations)) for operations in rows)
    if looks <= LEAST or coupled < len(rows):
        if rows:
            yield Declined(
                f"{coupled or 'none'} of {count(len(rows), 'forward')} exchanged activations, and parameters were compared at {count(looks, 'step')}",
                source(case),
            )
        return
    split = split_of(case)
    own, shared = split.own, split.shared
    if not own:
        yield from _equal_addends(case, steps)
    if not own or not shared:
        yield Declined(
            f"at first {count(len(shared), 'parameter')} are equal on all ranks, and {len(own) or 'none'} differ",
            source(case),
        )
        return
    drifted = [copies for copies in shared if copies.has_parted]
    if not drifted:
        yield Declined(
            f"{count(len(shared), 'shared parameter')} stay equal, and {len(own)} differ between ranks, as in a split model"
        )
        return
    first = min(drifted, key=lambda copies: copies.parted_at[0])
    step, values = first.parted_at
    says, place, phase = _cause(case, steps, drifted, first.name)
    yield silent_error(
        case,
        f"{first.name} is shared by all ranks of a split model and equal at first, but differs from step {step} on: {says}.",
        (
            sums(first.name, step, values),
            f"at step 0, {len(shared)} parameters are equal on all ranks and {len(own)} differ or are on some only, for example {own[0]}; {len(drifted)} of the equal ones drift",
        ),
        place,
        Where(parameter=first.name, step=max(step - 1, 0), phase=phase),
    )


def _equal_addends(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Shards that were initialized equally, so that the forward sums equal copies."""
    added = [step.side_by_side(lambda o: couples(o) and o.inside == "forward") for step in steps]
    alike = all(added) and all(_is_sum_of_equals(calls) for each in added for calls in each)
    if len(inputs_of(case)) < LEAST or inputs_differ(case) or not alike:
        return
    call = next(iter(added[0][0].values()))
    yield silent_error(
        case,
        f"The forward sums {case.cell.world_size} equal copies of one activation in each of {len(steps)} steps: all ranks hold the same weights and got the same batch, so the model is not really split.",
        f"the inputs of {call.name} are equal on all ranks to the last bit, as are all parameters and model inputs",
        call.place,
        Where(step=steps[0].number, phase="forward"),
        "Seed the shards by rank (and shared parameters equally), or split one tensor that is initialized whole.",
        strength=Strength.LIKELY,
    )


def _is_sum_of_equals(calls: dict[int, Operation]) -> bool:
    values, first = values_of(calls), next(iter(calls.values()))
    return first.reduces == "SUM" and bool(values) and equal(values) and not is_constant(first.values[0])


def _cause(
    case: Case, steps: tuple[Step, ...], drifted: list[Copies], parameter: str
) -> tuple[str, Place | str | None, str]:
    """The reason why it drifts, the line, and the phase."""
    first = steps[0]
    stepped, forward = first.on_first("step")[0], first.on_first("forward")
    if forward and _sums_activations(first) and differ(inputs_of(case).get(first.number, {})):
        return "the ranks got different batches and sum their activations", forward[0].place, "forward"
    apart = differing_setting(case)
    if apart and apart.step <= first.number:
        return f"{apart.setting} is {apart.says}", apart.place, "optimizer"
    if clip := _norms_apart(steps):
        return "gradients are clipped by each rank's own norm, over its shards only", clip.place, "backward"
    if own := _own_draw(first):
        return (
            f"{own.name} is given the same on all ranks and returns something else on each, so what is shared behind it has another gradient on each rank",
            own.place,
            "forward",
        )
    says = "its gradient is partial on each rank, and nothing sums it"
    modules = {copies.name.rpartition(".")[0] for copies in drifted}
    # Where others of its shape are summed by hand, as norms of other layers, this one is left out there.
    later = steps[1].on_first("collective")
    shape = drifted[0].first.shape
    summed = [o for o in later if reduces_gradients(o) and tuple(o.shape) == tuple(shape)]
    if summed:
        return says, summed[-1].place, "backward"
    used = only_use(case.cell.code, parameter.rpartition(".")[0].rpartition(".")[2])
    planned = last_call(case.cell.code, "parallelize_module")
    return says, planned or (used if len(modules) == 1 else None) or stepped.place, "backward"


def _sums_activations(step: Step) -> bool:
    """Whether ranks exchange activations by sums alone: where parts are gathered first, each rank has a part of the sequence, or of the features."""
    exchanged = [o for operations in step.ranks.values() for o in operations if couples(o)]
    gathered = any("gather" in o.name or "scatter" in o.name for o in exchanged)
    return not gathered and any(o.reduces == "SUM" for o in exchanged)


def _own_draw(step: Step) -> Call | None:
    """The first module without parameters, such as dropout, that makes something else on each rank of the same values.

    Only where the ranks, which share the loss of a split model, have different ones.
    """
    losses = {o.value for found in step.of("backward").values() for o in found[:1]}
    calls: tuple[Call, ...]
    for calls in zip(*step.calls.values(), strict=False) if len(losses) > 1 else ():
        if len({(call.name, call.place) for call in calls}) > 1:
            return None
        alike = len({tuple(v.exact for v in call.given) for call in calls}) == 1
        unlike = len({tuple(v.exact for v in call.made) for call in calls}) > 1
        if alike and unlike and calls[0].given and not calls[0].held:
            return calls[0]
    return None


def _norms_apart(steps: tuple[Step, ...]) -> Operation | None:
    """The first clipping for which the ranks have different norms."""
    for step in steps:
        clips = [found[0] for found in step.of("clip").values() if found]
        if len(clips) == len(step.ranks) and len({clip.value for clip in clips}) > 1:
            return clips[0]
    return None


RULE = Rule(
    family="correctness",
    detected="(on a GPU: `--probes light,invariants`) In a model that is split over the ranks (each forward exchanges activations, and some parameters belong to one rank each), parameters that all ranks start with equally drift: their gradient is only partial, is clipped by a shard's norm, belongs to another batch, or to another dropout of what all ranks share",
    fix="Sum the gradients of shared parameters over the group that the model is split over (in backward, or before the optimizer's step), and give these ranks the same batches and, for what they share, the same random numbers.",
    check=partial_gradients,
    keeps="copies",
    explained_by=("nonfinite", "control_mismatch"),
)

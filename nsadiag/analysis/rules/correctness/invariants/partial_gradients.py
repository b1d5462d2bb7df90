"""Shared parameters of a split model that drift, since each rank's gradient is only partial or of another batch."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, Step, couples, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import (
    Key,
    Look,
    equal,
    inputs_of,
    is_constant,
    kept_equal,
    keys_of,
    looks_of,
    timeline,
)
from nsadiag.analysis.rules.correctness.replicas.optimizer_settings import differing_setting
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Call, Operation
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.single_call import only_use


def partial_gradients(case: Case) -> Iterator[Draft | Declined]:
    """Only if each forward exchanges activations, and some parameters differ from the start while others are equal:
    the model is then split on purpose, and the equal parameters are shared.
    """
    looks, steps = looks_of(case), steps_of(case)
    if len(looks) <= LEAST or not all(
        any(map(couples, found)) for step in steps for found in step.ranks.values()
    ):
        yield Declined(f"no activations were exchanged in every one of {len(steps)} recorded forwards")
        return
    own, shared = _split(looks)
    if not own:
        yield from _equal_addends(case, steps)
    if not own or not shared:
        yield Declined("all parameters are equal on all ranks at first, or none is")
        return
    drifted = [key for key in keys_of(looks) if key in shared and _drifts(looks, key)]
    if not drifted:
        yield Declined(
            f"{len(shared)} shared parameters stay equal, next to {len(own)} that differ between ranks"
        )
        return
    apart = {key: timeline(looks, key)[kept_equal(timeline(looks, key))] for key in drifted}
    key = min(drifted, key=lambda each: apart[each][0])
    step, values = apart[key]
    says, place, phase = _cause(case, steps, key)
    shown = ", ".join(f"rank {rank}: {v.total:.8g}" for rank, v in sorted(values.items())[:8])
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{key[1]} is shared by all ranks of a split model and equal at first, but differs from step {step} on: {says}.",
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
        where=Where(parameter=key[1], step=max(step - 1, 0), phase=phase).at(place),
        evidence={
            f"sum over {key[1]} before step {step}: {shown}": source(case),
            f"at step 0, {len(shared)} parameters are equal on all ranks and {len(own)} differ, for example {next(iter(own))[1]}; {len(drifted)} of the equal ones drift": source(
                case
            ),
        },
    )


def _equal_addends(case: Case, steps: tuple[Step, ...]) -> Iterator[Draft]:
    """Shards that were initialized equally, so that the forward sums equal copies."""
    inputs = inputs_of(case)
    if len(inputs) < LEAST or any(
        not equal(dict(enumerate(each)))
        for given in inputs.values()
        for each in zip(*given.values(), strict=False)
    ):
        return
    found: list[Operation] = []
    for step in steps:
        each = {
            rank: [o for o in ops if couples(o) and o.inside == "forward"] for rank, ops in step.ranks.items()
        }
        if len({len(ops) for ops in each.values()}) > 1:
            return
        for calls in zip(*each.values(), strict=True):
            values = {n: o.values[0] for n, o in enumerate(calls) if o.values}
            if (
                calls[0].reduces != "SUM"
                or len(values) < len(calls)
                or not equal(values)
                or is_constant(values[0])
            ):
                return
            found.append(calls[0])
    if len(found) < len(steps):
        return
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"The forward sums {case.cell.world_size} equal copies of one activation in each of {len(steps)} steps: all ranks hold the same weights and got the same batch, so the model is not really split.",
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks),
        where=Where(step=steps[0].number, phase="forward").at(locations.of_text(found[0].place)),
        evidence={
            f"the inputs of {found[0].name} are equal on all ranks to the last bit, as are all parameters and model inputs": source(
                case
            )
        },
        fix="Seed the shards by rank (and shared parameters equally), or split one tensor that is initialized whole.",
    )


def _split(looks: tuple[Look, ...]) -> tuple[dict[Key, None], dict[Key, None]]:
    """Parameters that differ from the start, and those that all ranks share.

    A parameter that starts as zeros or ones is classed with its neighbours in the model.
    """
    first = looks[0].held
    own = {key: None for key, values in first.items() if not equal(values)}
    alike = {k: None for k, v in first.items() if equal(v) and not is_constant(v[min(v)])}
    plain = [key for key in first if key not in own and key not in alike]
    sizes = {size for key in alike for size in first[key][min(first[key])].shape}
    shapes = {key: first[key][min(first[key])].shape for key in plain}
    shared = {**alike, **{key: None for key in plain if _nearest(key, own, alike, sizes, shapes[key])}}
    return own, shared


def _nearest(
    key: Key, own: dict[Key, None], alike: dict[Key, None], sizes: set[int], shape: tuple[int, ...]
) -> bool:
    """Whether it is shared, by its neighbours in the smallest enclosing module that has random parameters.

    A size that no shared parameter has belongs to a shard.
    """
    module = key[1].rpartition(".")[0]
    if any(each[1].rpartition(".")[0] == module for each in own) or not set(shape) <= sizes:
        return False
    while True:
        around = module + "." if module else ""
        if any(each[1].startswith(around) for each in alike):
            return True
        if not module or any(each[1].startswith(around) for each in own):
            return False
        module = module.rpartition(".")[0]


def _drifts(looks: tuple[Look, ...], key: Key) -> bool:
    at = timeline(looks, key)
    held = kept_equal(at)
    return held < len(at) and not any(equal(values) for _, values in at[held:])


def _cause(case: Case, steps: tuple[Step, ...], key: Key) -> tuple[str, Place | None, str]:
    first = steps[0]
    forward = next(iter(first.of("forward").values()), [])
    exchanged = [o for found in first.ranks.values() for o in found if couples(o)]
    # Where parts are gathered first, each rank has a part of the sequence, or of the features.
    gathered = any("gather" in o.name or "scatter" in o.name for o in exchanged)
    summed = not gathered and any(o.reduces == "SUM" for o in exchanged)
    if summed and forward and _inputs_differ(first):
        return (
            "the ranks got different batches and sum their activations",
            locations.of_text(forward[0].place),
            "forward",
        )
    stepped = next(iter(first.of("step").values()))[0]
    apart = differing_setting(case)
    if apart and apart.step <= first.number:
        return f"{apart.setting} is {apart.says}", apart.place, "optimizer"
    norms = _norms_apart(steps)
    if norms is not None:
        return (
            "gradients are clipped by each rank's own norm, over its shards only",
            locations.of_text(norms.place),
            "backward",
        )
    if own := _own_draw(first):
        return (
            f"{own.name} is given the same on all ranks and returns something else on each, so what is shared behind it has another gradient on each rank",
            locations.of_text(own.place),
            "forward",
        )
    place = only_use(case.cell.code, key[1].rpartition(".")[0].rpartition(".")[2])
    return (
        "its gradient is partial on each rank, and nothing sums it",
        place or locations.of_text(stepped.place),
        "backward",
    )


def _inputs_differ(step: Step) -> bool:
    given = {rank: [v for o in found for v in o.values] for rank, found in step.of("forward").items()}
    counts = {len(values) for values in given.values()}
    if len(counts) > 1 or not counts or 0 in counts:
        return False
    return any(not equal(dict(enumerate(values))) for values in zip(*given.values(), strict=True))


def _own_draw(step: Step) -> Call | None:
    """The first module without parameters, such as dropout, that makes something else on each rank of the same values.

    Only where the ranks, which share the loss of a split model, have different ones.
    """
    losses = {o.value for found in step.of("backward").values() for o in found[:1]}
    flows = [found[0].calls for found in step.of("flow").values() if found]
    if len(losses) < 2 or len(flows) < len(step.ranks):
        return None
    calls: tuple[Call, ...]
    for calls in zip(*flows, strict=False):
        if len({(call.name, call.place) for call in calls}) > 1:
            return None
        alike = len({tuple(v.exact for v in call.given) for call in calls}) == 1
        differ = len({tuple(v.exact for v in call.made) for call in calls}) > 1
        if alike and differ and calls[0].given and not calls[0].held:
            return calls[0]
    return None


def _norms_apart(steps: tuple[Step, ...]) -> Operation | None:
    for step in steps:
        clips = {rank: found[0] for rank, found in step.of("clip").items() if found}
        if len(clips) == len(step.ranks) and len({clip.value for clip in clips.values()}) > 1:
            return next(iter(clips.values()))
    return None


RULE = Rule(
    name="partial_gradients",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="(`--probes light,invariants`) In a model that is split over the ranks (each forward exchanges activations, and some parameters belong to one rank each), parameters that all ranks start with equally drift: their gradient is only partial, is clipped by a shard's norm, belongs to another batch, or to another dropout of what all ranks share",
    fix="Sum the gradients of shared parameters over the group that the model is split over (in backward, or before the optimizer's step), and give these ranks the same batches and, for what they share, the same random numbers.",
    check=partial_gradients,
    explained_by=("nonfinite", "control_mismatch"),
    confused_with=("healthy",),
)

"""Inputs that are drawn at random, and are the same on all ranks of a model in DDP whose batches differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import SMALL, Step, couples, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import Values, equal
from nsadiag.analysis.relations.replication import has_parts, is_replicated
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import seeded_alike

LEAST = 8  # recorded steps


def shared_draws(case: Case) -> Iterator[Draft | Declined]:
    steps = steps_of(case)
    couple = any(couples(o) for step in steps for found in step.of("collective").values() for o in found)
    forwards = [found for step in steps if (found := _first_forward(step))]
    if len(forwards) < LEAST or couple or not is_replicated(case.cell) or has_parts(case):
        if forwards:
            whole = (
                "a model in DDP over all ranks"
                if is_replicated(case.cell)
                else "no model in DDP over all ranks"
            )
            does = "exchange" if couple else "do not exchange"
            yield Declined(
                f"in {count(len(forwards), 'step')} with recorded inputs, ranks {does} activations, with {whole}",
                source(case),
            )
        return
    drawn = _drawn_alike(forwards)
    if drawn is None or not _draw_alike(forwards):
        yield Declined(
            f"in {count(len(forwards), 'step')} no input that changes is the same on all ranks beside one that differs",
            source(case),
        )
        return
    first = next(iter(forwards[0].values()))
    value = first.values[drawn]
    yield silent_error(
        case,
        f"{value.name} of {first.name} is drawn at random, one for each of {value.shape[0]} samples, and is the same on all ranks in every step, though their samples differ: all ranks draw with one seed.",
        f"in {count(len(forwards), 'step')}, the states of torch's generators and the checksums of {value.name} were equal on all ranks, and other ones in each step; those of another input differed",
        seeded_alike(case.cell.code) or first.place,
        Where(step=steps[0].number, phase="forward"),
        "Seed each rank with its own number once the model is built, as in manual_seed(seed + rank).",
        strength=Strength.LIKELY,
    )


def _first_forward(step: Step) -> dict[int, Operation]:
    """By rank; none where a rank has none with inputs."""
    found = {rank: next((o for o in ops if o.values), None) for rank, ops in step.of("forward").items()}
    return {rank: o for rank, o in found.items() if o is not None} if all(found.values()) else {}


def _draw_alike(forwards: list[dict[int, Operation]]) -> bool:
    """Whether the generators are in one state on all ranks, and draw between any two steps."""
    states = [{o.random for o in first.values()} for first in forwards]
    distinct = set.union(*states)
    return all(len(each) == 1 for each in states) and len(distinct) == len(states) and 0 not in distinct


def _drawn_alike(forwards: list[dict[int, Operation]]) -> int | None:
    """The input that is the same on all ranks in each step and changes, beside one that differs and has as many samples."""
    least = min(len(o.values) for first in forwards for o in first.values())
    inputs = [[{rank: o.values[n] for rank, o in first.items()} for first in forwards] for n in range(least)]
    own = {_samples(values) for values in inputs if not any(map(equal, values))} - {None}
    return next((n for n, values in enumerate(inputs) if _is_drawn(values) and _samples(values) in own), None)


def _is_drawn(each: list[Values]) -> bool:
    """Whether it is equal on all ranks in each step, another one in the next, and no constant, as lengths of a bucket are."""
    firsts = [next(iter(values.values())) for values in each]
    moves = all(one.exact != other.exact for one, other in itertools.pairwise(firsts))
    whole = [v for v in firsts if v.total % max(math.prod(v.shape), 1)]
    return all(map(equal, each)) and moves and 2 * len(whole) > len(firsts)


def _samples(each: list[Values]) -> int | None:
    """Its first dimension, where it has the same shape on all ranks in all steps."""
    shapes = {value.shape for values in each for value in values.values()}
    shape = next(iter(shapes))
    return shape[0] if len(shapes) == 1 and shape and math.prod(shape) > SMALL and shape[0] > 1 else None


RULE = Rule(
    family="correctness",
    detected="(on a GPU: `--probes light,invariants`) an input of a model in DDP that is drawn at random for each sample, as timesteps and noise are, is the same on all ranks in every step, and so are the states of their generators, though the samples differ",
    fix="Seed each rank with its own number once the model is built.",
    check=shared_draws,
    keeps="samples",
    explained_by=("nonfinite", "broken_equalities"),
)

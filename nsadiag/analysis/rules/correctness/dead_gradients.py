"""Untrained weights: in every block of the model their gradient is zero, or rounding, in every step."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.ingest.first_steps.record import Parameter, Record, RecordedStep, record_of
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import module_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import listed, shortened

# In a branch initialized to zero the first step may train only its last layer, and the next one those before it.
MIN_STEPS = 3
NOTHING = 1e-6  # share of the largest gradient in the block: the rounding of cancelling float32 sums
NUMBER = re.compile(r"\.(\d+)\.")  # the number of a block in its list
STEADY = 10  # largest ratio to the norm of the first step: what starts at zero grows with every step


@dataclass(frozen=True, kw_only=True)
class Block:
    """One module of a list: the norms of its weights' gradients by step, by name within the module."""

    weights: dict[str, tuple[float, ...]]

    @property
    def untrained(self) -> set[str]:
        """Weights that never have a gradient, next to others that always have one."""
        largest = [max(norms) for norms in zip(*self.weights.values(), strict=True)]
        return {
            name
            for name, norms in self.weights.items()
            if all(n <= NOTHING * most and most > 0 for n, most in zip(norms, largest, strict=True))
            and max(norms) <= STEADY * norms[0]
        }


def dead_gradients(case: Case) -> Iterator[Draft | Declined]:
    """Untrained weights in the records of the probe `parity`, if they are the same in every block: a single head without a
    gradient may be trained later."""
    if case.cell.stopped is not None or any(rank.exception for rank in case.cell.ranks):
        return
    rows = {rank.rank: rank.first_steps for rank in case.cell.ranks if rank.first_steps}
    record = record_of(rows, {rank.rank: rank.meta.world_size for rank in case.cell.ranks})
    names = untrained(record)
    if not names:
        yield Declined(
            "in the first steps no weight lacks a gradient in every block"
            if rows
            else "the probe parity recorded no rank's first steps"
        )
        return
    count, parts = len(record.steps), list(dict.fromkeys(NUMBER.sub(".*.", name, count=1) for name in names))
    norms = listed((f"{_norm(step.parameters[names[0]]):.1e}" for step in record.steps), count)
    claims = (
        f"norm of the gradient of {names[0]}, by step: {norms}; {len(names)} weights have one below {NOTHING:g} of the largest in their block",
        "all other weights changed from each of these steps to the next, so the optimizer made its steps",
    )
    yield silent_error(
        case,
        f"{shortened(parts)} got no gradient beyond rounding, in every block and at each of the first {count} steps, while the rest of each block was trained: their output does not reach the loss.",
        dict.fromkeys(claims, record.source),
        None,
        Where(parameter=names[0], module=module_of(names[0]) or None, step=0, phase="backward"),
        strength=Strength.WEAK,
        ranks=sorted(rows),
    )


def untrained(record: Record) -> list[str]:
    """Names of such weights, in the order of the model; none if a step was skipped, as a scaler skips its first ones.

    Vectors are left out: the bias before a normalization, or of an attention's keys, has no gradient in principle. A
    weight that was not used at all has no gradient either (None), and is left out too.
    """
    weights = {
        name: [step.parameters[name] for step in record.steps if name in step.parameters]
        for name, parameter in (record.steps[0].parameters.items() if len(record.steps) >= MIN_STEPS else ())
        if len(parameter.shape) > 1 and parameter.complete
    }
    lists: dict[str, dict[str, dict[str, tuple[float, ...]]]] = defaultdict(lambda: defaultdict(dict))
    for name, at_steps in weights.items():
        number = NUMBER.search(name)
        if number and len(at_steps) == len(record.steps) and all(p.gradient.sketch for p in at_steps):
            norms = tuple(_norm(parameter) for parameter in at_steps)
            lists[name[: number.start()]][number[1]][name[number.end() :]] = norms
    found = {
        f"{before}.{number}.{name}"
        for before, blocks in lists.items()
        for name in _in_every_block([Block(weights=found) for found in blocks.values()])
        for number in blocks
    }
    others = [name for name in weights if name not in found and all(p.gradient.sketch for p in weights[name])]
    moved = all(_moved(record.steps, name) for name in others)
    return [name for name in weights if name in found] if moved else []


def _in_every_block(blocks: list[Block]) -> set[str]:
    return set.intersection(*(block.untrained for block in blocks)) if len(blocks) > 1 else set()


def _norm(parameter: Parameter) -> float:
    sketch = parameter.gradient.sketch
    return sketch.norm + parameter.gradient.apart if sketch else 0.0


def _moved(steps: tuple[RecordedStep, ...], name: str) -> bool:
    """Whether the parameter changed from each of these steps to the next."""
    values = [p.value.sketch if (p := step.parameters.get(name)) and p.value else None for step in steps]
    return all(a and b and a.distance(b) > 0 for a, b in itertools.pairwise(values))


RULE = Rule(
    family="correctness",
    detected="From the probe `parity`: weights that got no gradient beyond rounding at each of the first three steps, in every block of a list of blocks whose other weights are trained (it may be intended)",
    fix="Check the path between them and the loss: a softmax over one key, a mask that masks everything, a factor or gate of zero, a detach(), or identical tokens, as in synthetic data. If it is intended, freeze them: requires_grad_(False).",
    check=dead_gradients,
    keeps="order",
    explained_by=("unstable_hash",),
)

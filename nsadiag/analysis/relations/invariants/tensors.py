"""Tensors of the first steps: which copies are equal on all ranks, for how long, and which are each rank's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import Step, steps_of
from nsadiag.evidence.documents.operations import Checksum

# Elements of one tensor that are read at most, for its exact checksum and for its sums (worker's checksums).
EXACT, SUMMED = 1 << 15, 1 << 11
Key = tuple[int, str, int]  # optimizer, name, place among those of the name


@dataclass(frozen=True, kw_only=True)
class Look:
    """Parameters as an optimizer's step begins, and the gradients that it uses: by tensor and rank."""

    step: int
    held: dict[Key, dict[int, Checksum]]
    used: dict[Key, dict[int, Checksum]]


def looks_of(case: Case) -> tuple[Look, ...]:
    """The steps whose tensors were read, as the probe `invariants` does."""
    return case.once(_looks)


def _looks(case: Case) -> tuple[Look, ...]:
    found = [
        Look(
            step=step.number,
            held=tensors_of(step, "step"),
            used=tensors_of(step, "used"),
        )
        for step in steps_of(case)
    ]
    return tuple(look for look in found if look.held)


def tensors_of(step: Step, kind: str) -> dict[Key, dict[int, Checksum]]:
    """Values of operations of a kind, by tensor and rank: only what all ranks have."""
    found: dict[Key, dict[int, Checksum]] = {}
    for rank, operations in step.of(kind).items():
        met: dict[tuple[int, str], int] = {}
        for operation in operations:
            for value in operation.values:
                number = operation.optimizer or 0
                place = met.get((number, value.name), 0)
                met[number, value.name] = place + 1
                found.setdefault((number, value.name, place), {}).setdefault(rank, value)
    return {key: by_rank for key, by_rank in found.items() if len(by_rank) == len(step.ranks)}


def wholes_of(case: Case) -> dict[Key, list[tuple[int, dict[int, Checksum]]]]:
    """Parameters of which every bit was read, at the steps at which they were, on all ranks."""
    return case.once(_wholes)


def _wholes(case: Case) -> dict[Key, list[tuple[int, dict[int, Checksum]]]]:
    found: dict[Key, list[tuple[int, dict[int, Checksum]]]] = {}
    names: dict[int, tuple[str, ...]] = {}
    for step in steps_of(case):
        each: dict[Key, dict[int, Checksum]] = {}
        for rank, operations in step.of("whole").items():
            for row in operations:
                known = names.setdefault(row.optimizer or 0, row.named)
                for number, exact in enumerate(row.exacts if known else (), row.start):
                    place = number % len(known)
                    key = (row.optimizer or 0, known[place], place)
                    each.setdefault(key, {})[rank] = Checksum(known[place], (), exact, 0.0, 0.0)
        for key, values in each.items():
            if len(values) == len(step.ranks):
                found.setdefault(key, []).append((step.number, values))
    return found


def equal(values: dict[int, Checksum]) -> bool:
    """Whether the copies are one to the last bit."""
    return len({(v.shape, v.exact, v.total) for v in values.values()}) == 1


def is_constant(value: Checksum) -> bool:
    """Whether it may be all zeros or all ones, as biases and norms begin: equal on ranks that know nothing of each other."""
    return value.magnitude == 0 or value.total == value.magnitude == summed_elements(value)


def summed_elements(value: Checksum) -> int:
    """Number of elements of the tensor whose sums are recorded."""
    return _spread(_spread(math.prod(value.shape), EXACT), SUMMED)


def inputs_of(case: Case) -> dict[int, dict[int, tuple[Checksum, ...]]]:
    """By step and rank, what the outermost modules were given, of steps in which all ranks were given something."""
    found = {
        step.number: {
            rank: tuple(v for o in ops for v in o.values) for rank, ops in step.of("forward").items()
        }
        for step in steps_of(case)
    }
    return {number: given for number, given in found.items() if all(given.values())}


def _spread(size: int, most: int) -> int:
    """Number of elements that are read of so many."""
    return -(-size // -(-size // most)) if size else 0


def timeline(looks: tuple[Look, ...], key: Key) -> list[tuple[int, dict[int, Checksum]]]:
    """A parameter at each snapshot that had it."""
    return [(look.step, look.held[key]) for look in looks if key in look.held]


def keys_of(looks: tuple[Look, ...]) -> Iterator[Key]:
    """Parameters that every look has."""
    if looks:
        yield from (key for key in looks[0].held if all(key in look.held for look in looks))


def kept_equal(at: list[tuple[int, dict[int, Checksum]]]) -> int:
    """Number of looks, from the first on, at which the copies are equal."""
    return next((n for n, (_, values) in enumerate(at) if not equal(values)), len(at))


def has_moved(at: list[tuple[int, dict[int, Checksum]]]) -> int:
    """Number of changes from one snapshot to the next, on the first rank."""
    exact = [next(iter(values.values())).exact for _, values in at]
    return sum(one != other for one, other in itertools.pairwise(exact))

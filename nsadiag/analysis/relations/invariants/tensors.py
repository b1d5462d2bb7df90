"""Tensors of the first steps: which copies are equal on all ranks, for how long, and which are each rank's own."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import Step, steps_of
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.spans import by_rank

# Elements of one tensor that are read at most, for its exact checksum and for its sums (worker's checksums).
EXACT, SUMMED = 1 << 15, 1 << 11
Key = tuple[int, str, int]  # optimizer, name, place among those of the name
Values = dict[int, Checksum]  # of one tensor, by rank


@dataclass(frozen=True, kw_only=True)
class Copies:
    """One tensor on all ranks: its copies at each step at which it was read."""

    key: Key
    at: list[tuple[int, Values]]

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def first(self) -> Checksum:
        """The first rank's copy, at first."""
        return next(iter(self.at[0][1].values()))

    @cached_property
    def held(self) -> int:
        """Number of steps, from the first on, at which they are equal."""
        return next((n for n, (_, values) in enumerate(self.at) if not equal(values)), len(self.at))

    @property
    def is_kept(self) -> bool:
        """Whether they are equal at every step."""
        return self.held == len(self.at)

    @property
    def ever_equal(self) -> bool:
        return any(equal(values) for _, values in self.at)

    @property
    def has_parted(self) -> bool:
        """Whether they are equal at some steps from the first on, and never again: averages would make them equal later."""
        return self.held < len(self.at) and not any(equal(values) for _, values in self.at[self.held :])

    @property
    def parted_at(self) -> tuple[int, Values]:
        """The first step at which they differ, and the copies there; where they are not kept equal."""
        return self.at[self.held]

    def moves(self, until: int | None = None) -> int:
        """Number of changes from one step to the next, on the first rank, among so many steps."""
        exact = [next(iter(values.values())).exact for _, values in self.at[:until]]
        return sum(one != other for one, other in itertools.pairwise(exact))

    def is_still(self, rank: int) -> bool:
        """Whether the rank's copy never changes."""
        return len({values[rank].exact for _, values in self.at}) == 1

    @property
    def follows(self) -> bool:
        """Whether it changes from each step to the next, on every rank."""
        pairs = itertools.pairwise(values for _, values in self.at)
        return all(before[rank].exact != after[rank].exact for before, after in pairs for rank in before)


def looks_of(case: Case) -> tuple[int, ...]:
    """The steps at which parameters were read on all ranks, as the probe `invariants` does."""
    steps = {step for copies in copies_of(case, "step").values() for step, _ in copies.at}
    return tuple(sorted(steps))


def parameters_of(case: Case) -> list[Copies]:
    """Those that were read at each look, before the optimizer's step."""
    looks = len(looks_of(case))
    return [copies for copies in copies_of(case, "step").values() if len(copies.at) == looks]


def copies_of(case: Case, kind: str) -> dict[Key, Copies]:
    """Tensors that operations of a kind touch on all ranks: `step` and `used` are an optimizer's parameters and gradients,
    `whole` has every bit of parameters, `buffers` begin as they were drawn.
    """
    return case.once(_copies).get(kind, {})


def _copies(case: Case) -> dict[str, dict[Key, Copies]]:
    found: dict[str, dict[Key, Copies]] = defaultdict(dict)
    names: dict[int, tuple[str, ...]] = {}
    for step in steps_of(case):
        read = _tensors_of(step, names)
        for kind, tensors in read.items():
            for key, values in tensors.items():
                if len(values) == len(step.ranks):
                    copies = found[kind].setdefault(key, Copies(key=key, at=[]))
                    drawn = read.get("drawn", {}).get(key, {}) if kind == "buffers" else {}
                    copies.at.extend(
                        (step.number, each) for each in (drawn, values) if len(each) == len(values)
                    )
    return found


def _tensors_of(step: Step, names: dict[int, tuple[str, ...]]) -> dict[str, dict[Key, Values]]:
    """By kind of operation. `names`: by optimizer, of the parameters whose whole checksums are recorded."""
    found: dict[str, dict[Key, Values]] = defaultdict(lambda: defaultdict(dict))
    for rank, operations in step.ranks.items():
        met: Counter[tuple[str, int, str]] = Counter()
        for operation in operations:
            kind, optimizer = operation.kind, operation.optimizer or 0
            for value in operation.values:
                place = met[kind, optimizer, value.name]
                met[kind, optimizer, value.name] += 1
                found[kind][optimizer, value.name, place].setdefault(rank, value)
            for place, value in _wholes(operation, names) if kind == "whole" else ():
                found[kind][optimizer, value.name, place][rank] = value
    return found


def _wholes(operation: Operation, names: dict[int, tuple[str, ...]]) -> Iterator[tuple[int, Checksum]]:
    """Each parameter of which every bit was summed, with its place among the optimizer's."""
    known = names.setdefault(operation.optimizer or 0, operation.named)
    for number, exact in enumerate(operation.exacts if known else (), operation.start):
        place = number % len(known)
        yield place, Checksum(known[place], (), exact, 0.0, 0.0)


def models_of(case: Case) -> dict[str, int]:
    """The model that a parameter is in, by its name; of a name in two models, and of recordings that do not say, none."""
    return case.once(_models)


def _models(case: Case) -> dict[str, int]:
    found: dict[str, set[int]] = defaultdict(set)
    for operation in (o for step in steps_of(case) for o in step.on_first("whole")):
        for name, model in zip(operation.named, operation.of_models, strict=False):
            found[name].add(model)
    return {name: min(models) for name, models in found.items() if len(models) == 1}


def equal(values: Values) -> bool:
    """Whether the copies are one to the last bit."""
    return len({(v.shape, v.exact, v.total) for v in values.values()}) == 1


def sums(name: str, step: int, values: Values) -> str:
    """The claim of what each rank's copy is before a step."""
    return f"sum over {name} before step {step}: {by_rank({r: v.total for r, v in values.items()}, '.8g')}"


def differ(given: Mapping[int, Iterable[Checksum]]) -> bool:
    """Whether any of the values that each rank has, in their order, is another one on some rank."""
    return any(not equal(dict(enumerate(each))) for each in zip(*given.values(), strict=False))


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


def inputs_differ(case: Case) -> bool:
    """Whether the ranks were given other values at some step."""
    return any(map(differ, inputs_of(case).values()))


def _spread(size: int, most: int) -> int:
    """Number of elements that are read of so many."""
    return -(-size // -(-size // most)) if size else 0

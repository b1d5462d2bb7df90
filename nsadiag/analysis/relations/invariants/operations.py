"""Operations of the first steps, in their order, on all ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.evidence.documents.operations import Call, Checksum, Operation

Operations = tuple[Operation, ...]

LEAST = 3  # steps that agree, before anything is said of all of them
SMALL = 16  # elements: counts, losses and flags have no more
MOST_OPERATIONS = 300  # of a step that are noted
MOST_STEPS = 0.8


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that all ranks recorded: by rank, its operations in their order, the last of which is an optimizer's step."""

    number: int
    ranks: dict[int, tuple[Operation, ...]]

    def of(self, kind: str) -> dict[int, list[Operation]]:
        """By rank, those of a kind."""
        return {rank: of_kind(found, kind) for rank, found in self.ranks.items()}

    @property
    def calls(self) -> dict[int, tuple[Call, ...]]:
        """By rank, its calls of modules and collectives in their order; empty where a rank's are not known."""
        found = {
            rank: tuple(c for flow in flows for c in flow.calls) for rank, flows in self.of("flow").items()
        }
        return found if all(found.values()) else {}

    def on_first(self, *kinds: str) -> list[Operation]:
        """Those of these kinds on the first rank."""
        return [o for o in next(iter(self.ranks.values())) if o.kind in kinds]

    def side_by_side(self, is_it: Callable[[Operation], bool]) -> list[dict[int, Operation]]:
        """By rank, the first operation of those that pass, then the second, and so on; none where numbers differ."""
        found = {rank: [o for o in ops if is_it(o)] for rank, ops in self.ranks.items()}
        if len(set(map(len, found.values()))) > 1:
            return []
        return [dict(zip(found, calls, strict=True)) for calls in zip(*found.values(), strict=True)]


def steps_of(case: Case) -> tuple[Step, ...]:
    """Steps that every rank recorded, of very many each representative; none where one is missing, hung or raised."""
    return case.once(_steps)


def _steps(case: Case) -> tuple[Step, ...]:
    if not ran_together(case.cell):
        return ()
    rows = {rank.rank: {row.step: row.operations for row in rank.observed} for rank in case.cell.ranks}
    common = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    until = min(map(_last_together, case.cell.ranks), default=math.inf)
    numbers = [number for number in common if number <= until]
    steps = [Step(number=n, ranks={rank: found[n] for rank, found in rows.items()}) for n in numbers]
    # Other rows hold what is always noted: epochs and loads.
    return tuple(step for step in steps if all(step.of("step").values()))


def _last_together(rank: RankEvidence) -> float:
    """The last step whose number means the same moment on all ranks: under Join, one without data makes none."""
    if not any(row.shadowed for row in rank.replicas):
        return math.inf
    return max((row.step for row in rank.replicas if not row.shadowed), default=-1)


def of_kind(operations: Operations, kind: str) -> list[Operation]:
    """Those of a kind, in their order."""
    return [o for o in operations if o.kind == kind]


def settings_of(operation: Operation) -> list[dict[str, str]]:
    """Hyperparameters of an optimizer's groups, by name."""
    words = ([word.partition("=") for word in text.split(" ")] for text in operation.settings)
    return [{name: value for name, _, value in group if value} for group in words]


def rates_of(operation: Operation) -> list[float]:
    """Learning rates of an optimizer's groups."""
    return [float(group["lr"]) for group in settings_of(operation) if "lr" in group]


def noted(rank: RankEvidence, *kinds: str) -> list[tuple[int, Operation]]:
    """All operations of these kinds that the rank recorded, each with its step; of every kind where none is given."""
    return [(row.step, o) for row in rank.observed for o in row.operations if not kinds or o.kind in kinds]


def source(case: Case, rank: int | None = None) -> str:
    """The file that shows it."""
    return f"{case.cell.rank(case.cell.ranks[0].rank if rank is None else rank).source}/invariants.jsonl"


def phases(operations: tuple[Operation, ...]) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """A step's operations before its first backward, and from there on."""
    first = next((n for n, o in enumerate(operations) if o.kind == "backward"), len(operations))
    return operations[:first], operations[first:]


def scaled(operations: tuple[Operation, ...]) -> list[float]:
    """Each gradient's magnitude as the optimizer used it, as a multiple of that after the last backward."""
    made, used = (
        {v.name: v.magnitude for o in operations if o.kind == kind and o.values for v in o.values if v.magnitude}
        for kind in ("made", "used")
    )  # fmt: skip
    return [used[name] / made[name] for name in made.keys() & used.keys()]


def reduces_gradients(operation: Operation) -> bool:
    """Whether it is a reduction of gradients that the user's code asks for, behind backward."""
    reduces = operation.kind == "collective" and bool(operation.reduces) and not operation.inside
    return reduces and any(role.startswith("gradient") for role in operation.roles)


def reduced_names(case: Case) -> frozenset[str]:
    """Parameters whose gradients the user's code reduced in nearly every recorded step; none where rows are not whole."""
    rows = [operations for step in steps_of(case) for operations in step.ranks.values()]
    if any(len(operations) >= MOST_OPERATIONS for operations in rows):
        return frozenset()
    names = ({r.partition(" ")[2] for o in row if reduces_gradients(o) for r in o.roles} for row in rows)
    times = Counter(name for found in names for name in found)
    return frozenset(name for name, count in times.items() if name and count >= MOST_STEPS * len(rows))


def averages_by_hand(case: Case) -> bool:
    """Whether the user's code reduces gradients in nearly every recorded step, on every rank: one by one or in one piece."""
    rows = [operations for step in steps_of(case) for operations in step.ranks.values()]
    return len(rows) > 0 and sum(any(map(reduces_gradients, row)) for row in rows) >= MOST_STEPS * len(rows)


def values_of(calls: dict[int, Operation]) -> dict[int, Checksum]:
    """By rank, the first tensor of each; empty where one has none."""
    return {rank: o.values[0] for rank, o in calls.items()} if all(o.values for o in calls.values()) else {}


def couples(operation: Operation) -> bool:
    """Whether ranks exchange activations by it: tensors, in a forward, that are neither parameters nor gradients."""
    known = any(map(_is_of_model, operation.roles))
    large = math.prod(operation.shape) > SMALL if operation.shape else False
    return operation.kind == "collective" and large and not known and operation.inside != "backward"


def activation_places(case: Case) -> frozenset[str]:
    """Lines whose collectives carry activations, or in backward the gradients of these: never gradients of parameters."""
    issued = [o for step in steps_of(case) for found in step.of("collective").values() for o in found]
    others = {o.place for o in issued if o.inside == "" or any(map(_is_of_model, o.roles))}
    return frozenset(o.place for o in issued if o.place not in others)


def _is_of_model(role: str) -> bool:
    return role.startswith(("gradient", "parameter"))


def always(steps: tuple[Step, ...], holds: Callable[[tuple[Operation, ...]], bool]) -> bool:
    """Whether it holds of every rank's operations in every step, of which there are enough."""
    return len(steps) >= LEAST and all(holds(found) for step in steps for found in step.ranks.values())


def one_optimizer(steps: tuple[Step, ...]) -> bool:
    """Whether a single optimizer steps, once in each step."""
    return all(len(found) == 1 for step in steps for found in step.of("step").values())

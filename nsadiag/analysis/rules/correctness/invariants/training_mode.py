"""Models that continue training in eval mode, without dropout and batch statistics, after a validation."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, source, steps_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import only_call


def training_mode(case: Case) -> Iterator[Draft | Declined]:
    """Only a model that first trained in train mode and does not return to it: a job that starts in eval mode intends it."""
    steps = steps_of(case)
    trained: dict[tuple[int, str], list[tuple[int, Operation]]] = {}
    for step in steps:
        for rank, operations in step.ranks.items():
            if any(o.kind == "backward" for o in operations):
                for name, forward in _by_model(operations).items():
                    trained.setdefault((rank, name), []).append((step.number, forward))
    turned = {rank: seen for (rank, _), found in trained.items() if (seen := _turned(found))}
    if not turned:
        yield Declined(f"no model switched to eval mode and continued training, in {len(steps)} steps")
        return
    rank, (number, at) = next(iter(turned.items()))
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"{at.name} trains in eval mode from step {number} on: it was in train mode before, and nothing resets it.",
        guilty_ranks=tuple(sorted(turned)),
        where=Where(step=number, phase="forward").at(
            only_call(case.cell.code, "eval") or locations.of_text(at.place)
        ),
        evidence={
            f"forwards with gradients of {at.name}, which has dropout or batch statistics: in train mode until step {number - 1}, in eval mode at all later recorded steps": source(
                case, rank
            )
        },
    )


def _by_model(operations: tuple[Operation, ...]) -> dict[str, Operation]:
    """A forward of each model type, in train mode if there is one: an evaluation may keep gradients enabled."""
    found: dict[str, Operation] = {}
    for operation in operations:
        if operation.kind == "forward" and (operation.name not in found or not operation.evaluating):
            found[operation.name] = operation
    return found


def _turned(found: list[tuple[int, Operation]]) -> tuple[int, Operation] | None:
    """The first step of a final series in eval mode, after steps in train mode."""
    first = next((n for n, (_, o) in enumerate(found) if o.evaluating), None)
    if not first or not all(o.evaluating for _, o in found[first:]):
        return None
    # Snapshots become rarer: two late ones span as many steps as three early ones.
    if found[-1][0] - found[first][0] < LEAST or len(found) == first + 1:
        return None
    return found[first] if found[first][1].depends_on_mode else None


RULE = Rule(
    name="training_mode",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="A model with dropout or batch statistics first trains in train mode, and in eval mode from some step on",
    fix="Call model.train() after each evaluation.",
    check=training_mode,
    needs=("black_boxes",),
    explained_by=("nonfinite",),
    confused_with=("healthy",),
)

"""Models that continue training in eval mode, without dropout and batch statistics, after a validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, Step, steps_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import only_call

Trained = list[tuple[int, Operation]]  # forwards of a model that trains, each with its step


def training_mode(case: Case) -> Iterator[Draft | Declined]:
    """Only a model that first trained in train mode and does not return to it: a job that starts in eval mode intends it."""
    steps = steps_of(case)
    trained: dict[tuple[int, str], Trained] = defaultdict(list)
    for step in steps:
        for rank, operations in step.ranks.items():
            if any(o.kind == "backward" for o in operations):
                for name, forward in _by_model(operations).items():
                    trained[rank, name].append((step.number, forward))
    turned = {
        rank: seen
        for (rank, _), found in trained.items()
        if (seen := _turned(found)) and not _is_other_phase(steps, rank, seen[0])
    }
    if not turned:
        yield Declined(
            f"no model switched to eval mode and continued training, in {count(len(steps), 'step')}"
            if steps
            else "no step was recorded on all ranks"
        )
        return
    rank, (number, at) = next(iter(turned.items()))
    yield silent_error(
        case,
        f"{at.name} trains in eval mode from step {number} on: it was in train mode before, and nothing resets it.",
        f"forwards with gradients of {at.name}, which has dropout or batch statistics: in train mode until step {number - 1}, in eval mode at all later recorded steps",
        only_call(case.cell.code, "eval") or at.place,
        Where(step=number, phase="forward"),
        strength=Strength.LIKELY,
        ranks=sorted(turned),
        shown_by=rank,
    )


def _by_model(operations: tuple[Operation, ...]) -> dict[str, Operation]:
    """A forward of each model type, in train mode if there is one: an evaluation may keep gradients enabled."""
    found: dict[str, Operation] = {}
    for operation in operations:
        if operation.kind == "forward" and (operation.name not in found or not operation.evaluating):
            found[operation.name] = operation
    return found


def _turned(found: Trained) -> tuple[int, Operation] | None:
    """The first step of a final series in eval mode, after steps in train mode."""
    first = next((n for n, (_, o) in enumerate(found) if o.evaluating), 0)
    last = found[first:]
    # Snapshots become rarer: two late ones span as many steps as three early ones.
    if not first or len(last) < 2 or last[-1][0] - last[0][0] < LEAST:
        return None
    return last[0] if last[0][1].depends_on_mode and all(o.evaluating for _, o in last) else None


def _is_other_phase(steps: tuple[Step, ...], rank: int, since: int) -> bool:
    """Whether nothing that was trained before is trained from that step on, as when a temperature is calibrated."""
    stepped = [o for step in steps if step.number >= since for o in step.ranks[rank] if o.kind == "step"]
    return all(o.since is not None and o.since >= since for o in stepped)


RULE = Rule(
    family="correctness",
    detected="A model with dropout or batch statistics first trains in train mode, and in eval mode from some step on",
    fix="Call model.train() after each evaluation.",
    check=training_mode,
    needs=("black_boxes",),
    explained_by=("nonfinite",),
)

"""Models that continue training in eval mode, without dropout and batch statistics, after a validation."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import LEAST, Operations, Step, steps_of
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Where
from nsadiag.source.patterns.single_call import only_call

Trained = list[tuple[int, Operation]]  # forwards of a model that trains, each with its step


def _left_in_eval_mode(case: Case) -> Violation | str | None:
    """Only a model that first trained in train mode and does not return to it: a job that starts in eval mode intends it."""
    steps = steps_of(case)
    trained: dict[tuple[int, str], Trained] = {}
    for step in steps:
        for rank, operations in step.ranks.items():
            for name, forward in _by_model(operations).items():
                trained.setdefault((rank, name), []).append((step.number, forward))
    turned = {
        rank: seen
        for (rank, _), found in trained.items()
        if (seen := _turned(found)) and not _is_other_phase(steps, rank, seen[0])
    }
    if not turned:
        return "no model switched to eval mode and continued training"
    rank, (number, at) = next(iter(turned.items()))
    return Violation(
        at=only_call(case.cell.code, "eval") or at.place,
        where=Where(step=number, phase="forward"),
        words={"model": at.name, "step": number, "until": number - 1},
        ranks=sorted(turned),
        shown_by=rank,
    )


def _by_model(operations: Operations) -> dict[str, Operation]:
    """A forward of each model type that trains, in train mode if there is one: an evaluation may keep gradients enabled."""
    if not any(o.kind == "backward" for o in operations):
        return {}
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


RULES = rules_of(
    Expectation(
        name="left_in_eval_mode",
        detected="A model with dropout or batch statistics first trains in train mode, and in eval mode from some step on",
        find=_left_in_eval_mode,
        says="{model} trains in eval mode from step {step} on: it was in train mode before, and nothing resets it.",
        claim="forwards with gradients of {model}, which has dropout or batch statistics: in train mode until step {until}, in eval mode at all later recorded steps",
        fix="Call model.train() after each evaluation.",
    ),
    keeps="order",
    needs=("black_boxes",),
    explained_by=("nonfinite",),
)

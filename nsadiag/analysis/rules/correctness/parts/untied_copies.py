"""Tied weights of pipeline stages: one parameter on several stages that begins equal, and whose gradients are never summed."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, Step, steps_of
from nsadiag.analysis.relations.invariants.tensors import Values, equal, is_constant, sums
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.reasons import in_recorded_steps
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Call
from nsadiag.evidence.records import Where


def untied_copies(case: Case) -> Iterator[Draft | Declined]:
    """Only for a weight that one stage uses by its module, and another one without it, as an output layer uses an embedding."""
    steps = steps_of(case)
    flows = _flows(steps[0]) if len(steps) > LEAST else {}
    if not flows or not _is_pipeline(flows):
        yield from in_recorded_steps(case, "no rank is given what a model on another rank makes")
        return
    begun = _weights(steps[0])
    tied = [name for name, values in begun.items() if _is_tied(name, values, flows)]
    untied = [name for name in sorted(tied) if all(_differs(step, name) for step in steps[1:])]
    if not untied or all(equal(values) for values in begun.values()):
        yield Declined(f"{len(tied)} weights are used by a module on one stage and without it on another")
        return
    name = untied[0]
    values = begun[name]
    called = [rank for rank in sorted(values) if _calls(flows[rank], name)]
    others = [rank for rank in sorted(values) if rank not in called]
    since = _weights(steps[1])[name]
    yield silent_error(
        case,
        f"{name} is one weight on {named(case.cell, values)}, equal at first: {named(case.cell, called)} uses it by its module, and {named(case.cell, others)} for something else, as tied embeddings are. The copies differ from step {steps[1].number} on: the gradients of its two uses are never summed.",
        sums(name, steps[1].number, since),
        steps[0].on_first("step")[0].place,
        Where(parameter=name, step=steps[0].number, phase="backward"),
        ranks=values,
    )


def _flows(step: Step) -> dict[int, list[Call]]:
    """By rank, calls of modules in the step; empty where a rank's are not known."""
    found = {rank: [call for call in calls if not call.exchanges] for rank, calls in step.calls.items()}
    return found if all(found.values()) else {}


def _is_pipeline(flows: dict[int, list[Call]]) -> bool:
    """Whether what a rank's outermost module makes is given to another rank's."""
    made = {(rank, value.exact) for rank, calls in flows.items() for value in calls[0].made if value.exact}
    given = {(rank, value.exact) for rank, calls in flows.items() for value in calls[0].given}
    return any(one != other and made_ == given_ for one, made_ in made for other, given_ in given)


def _weights(step: Step) -> dict[str, Values]:
    """Parameters of optimizers, by name and rank."""
    found: dict[str, Values] = {}
    for rank, rows in step.of("step").items():
        for value in (v for o in rows for v in o.values):
            found.setdefault(value.name, {})[rank] = value
    return found


def _is_tied(name: str, values: Values, flows: dict[int, list[Call]]) -> bool:
    by_module = {_calls(flows[rank], name) for rank in values}
    return len(by_module) == 2 and equal(values) and not is_constant(next(iter(values.values())))


def _calls(calls: list[Call], parameter: str) -> bool:
    """Whether the module that holds the parameter is called."""
    return any(call.name == parameter.rpartition(".")[0] for call in calls)


def _differs(step: Step, name: str) -> bool:
    values = _weights(step).get(name)
    return values is not None and not equal(values)


RULE = Rule(
    family="correctness",
    detected="(`--probes light,invariants`) A weight that stages of a pipeline hold in common (one by its module, one without, as tied embeddings) begins equal on them and drifts apart",
    fix="Sum the gradients of tied weights over the stages that hold them, before the optimizer's step.",
    check=untied_copies,
    keeps="copies",
    explained_by=("nonfinite", "control_mismatch"),
)

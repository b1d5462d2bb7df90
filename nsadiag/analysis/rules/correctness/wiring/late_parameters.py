"""Parameters that were put into a model after its optimizer was made: they get gradients, and nothing ever changes them."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, steps_of
from nsadiag.analysis.relations.invariants.tensors import copies_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import listed, shortened
from nsadiag.source.patterns.single_call import last_assignment, only_call


def late_parameters(case: Case) -> Iterator[Draft | Declined]:
    unheld = copies_of(case, "unheld").values()
    looks = len({step for copies in unheld for step, _ in copies.at})
    late = [c for c in unheld if len(c.at) >= max(looks, LEAST) and all(map(c.is_still, c.at[0][1]))]
    stepped = (o for step in steps_of(case) for o in step.on_first("step"))
    held_by = next((o for o in stepped if late and (o.optimizer or 0) == late[0].key[0]), None)
    if held_by is None:
        yield Declined(
            "no parameter was put into a model after its optimizer was made, and then never changed"
        )
        return
    name = late[0].name
    module, _, own = name.rpartition(".")
    code = case.cell.code
    assigned = last_assignment(code, own) or last_assignment(code, module.rpartition(".")[2])
    yield silent_error(
        case,
        f"{shortened([c.name for c in late], 1)} got gradients in every step and never changed: put into the model after {held_by.name} was made, it is in no optimizer.",
        f"{name} was registered after the optimizer was made, and had a gradient and kept its values before steps {listed(step for step, _ in late[0].at)}",
        only_call(code, held_by.name) or assigned or held_by.place,
        Where(parameter=name, module=module or None, step=0, phase="optimizer"),
    )


RULE = Rule(
    name="late_parameters",
    family="correctness",
    detected="(`--probes light,invariants`) Parameters that were put into a model after its optimizer was made (an adapter, an untied layer) get gradients, are in no optimizer, and never change",
    fix="Create the optimizer when the model is final, or add the new parameters with add_param_group.",
    check=late_parameters,
    explained_by=("nonfinite", "stale_optimizer"),
)

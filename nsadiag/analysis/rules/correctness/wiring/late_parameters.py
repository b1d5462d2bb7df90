"""Parameters that were put into a model after its optimizer was made: they get gradients, and nothing ever changes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, steps_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import listed, shortened
from nsadiag.source.patterns.single_call import last_assignment, only_call


def late_parameters(case: Case) -> Iterator[Draft | Declined]:
    for rank in case.cell.ranks:
        seen: dict[str, list[tuple[int, Checksum]]] = defaultdict(list)
        looks: set[int] = set()
        held_by: list[Operation] = []
        for step in steps_of(case):
            operations = step.ranks[rank.rank]
            for row in (o for o in operations if o.kind == "unheld"):
                looks.add(step.number)
                held_by += [o for o in operations if o.kind == "step" and o.optimizer == row.optimizer]
                for value in row.values:
                    seen[value.name].append((step.number, value))
        late = [
            name
            for name, found in seen.items()
            if len(found) >= max(len(looks), LEAST) and len({value.exact for _, value in found}) == 1
        ]
        if late and held_by:
            yield _draft(case, rank.rank, late, [step for step, _ in seen[late[0]]], held_by[0])
            return
    yield Declined("no parameter was put into a model after its optimizer was made, and then never changed")


def _draft(case: Case, rank: int, late: list[str], steps: list[int], held_by: Operation) -> Draft:
    module, _, own = late[0].rpartition(".")
    assigned = last_assignment(case.cell.code, own) or last_assignment(
        case.cell.code, module.rpartition(".")[2]
    )
    return silent_error(
        case,
        f"{shortened(late, 1)} got gradients in every step and never changed: put into the model after {held_by.name} was made, it is in no optimizer.",
        f"{late[0]} was registered after the optimizer was made, and had a gradient and the same values before steps {listed(steps)}",
        only_call(case.cell.code, held_by.name) or assigned or held_by.place,
        Where(parameter=late[0], module=module or None, step=0, phase="optimizer"),
        shown_by=rank,
    )


RULE = Rule(
    name="late_parameters",
    family="correctness",
    detected="(`--probes light,invariants`) Parameters that were put into a model after its optimizer was made (an adapter, an untied layer) get gradients, are in no optimizer, and never change",
    fix="Create the optimizer when the model is final, or add the new parameters with add_param_group.",
    check=late_parameters,
    explained_by=("nonfinite", "stale_optimizer"),
)

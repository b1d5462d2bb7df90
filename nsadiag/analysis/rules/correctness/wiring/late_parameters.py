"""Parameters that were put into a model after its optimizer was made: they get gradients, and nothing ever changes them."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, source, steps_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum, Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.single_call import last_assignment, only_call


def late_parameters(case: Case) -> Iterator[Draft | Declined]:
    for rank in case.cell.ranks:
        seen: dict[str, list[tuple[int, Checksum]]] = {}
        looks, held_by = 0, None
        for step in steps_of(case):
            rows = [o for o in step.ranks[rank.rank] if o.kind == "unheld"]
            looks += bool(rows)
            for row in rows:
                held_by = held_by or _optimizer(step.ranks[rank.rank], row)
                for value in row.values:
                    seen.setdefault(value.name, []).append((step.number, value))
        late = [n for n, found in seen.items() if len(found) >= max(looks, LEAST) and _is_still(found)]
        if late and held_by is not None:
            yield _draft(case, rank.rank, late, seen[late[0]], held_by)
            return
    yield Declined("no parameter was put into a model after its optimizer was made, and then never changed")


def _optimizer(operations: tuple[Operation, ...], row: Operation) -> Operation | None:
    return next((o for o in operations if o.kind == "step" and o.optimizer == row.optimizer), None)


def _is_still(found: list[tuple[int, Checksum]]) -> bool:
    return len({value.exact for _, value in found}) == 1


def _draft(
    case: Case, rank: int, late: list[str], found: list[tuple[int, Checksum]], held_by: Operation
) -> Draft:
    name, more = late[0], f" and {len(late) - 1} more" if len(late) > 1 else ""
    module, _, own = name.rpartition(".")
    place = last_assignment(case.cell.code, own) or last_assignment(case.cell.code, module.rpartition(".")[2])
    return Draft(
        strength=Strength.STRONG,
        summary=f"{name}{more} got gradients in every step and never changed: put into the model after {held_by.name} was made, it is in no optimizer.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(parameter=name, module=module or None, step=0, phase="optimizer").at(
            only_call(case.cell.code, held_by.name) or place or locations.of_text(held_by.place)
        ),
        evidence={
            f"{name} was registered after the optimizer was made, and had a gradient and the same values before steps {', '.join(str(s) for s, _ in found[:8])}": source(
                case, rank
            )
        },
    )


RULE = Rule(
    name="late_parameters",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="(`--probes light,invariants`) Parameters that were put into a model after its optimizer was made (an adapter, an untied layer) get gradients, are in no optimizer, and never change",
    fix="Create the optimizer when the model is final, or add the new parameters with add_param_group.",
    check=late_parameters,
    explained_by=("nonfinite", "stale_optimizer"),
    confused_with=("healthy",),
)

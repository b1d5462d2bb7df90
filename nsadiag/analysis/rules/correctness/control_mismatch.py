"""A cell of a matrix that computes something else than its control, by the records of the probe `parity`."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.drafts import module_of
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Strength, Where


def control_mismatch(case: Case) -> Iterator[Draft | Declined]:
    compared = case.cell.parity
    if compared.judgement != "differs":
        found = compared.judgement
        yield Declined(
            f"compared with its control: {found}" if found else "it was not compared with a control"
        )
        return
    yield Draft(
        strength=Strength.within(compared.confidence) if compared.confidence else Strength.GUESS,
        summary=compared.says or "",
        at=locations.of_text(compared.place or ""),
        where=Where(
            parameter=compared.parameter,
            module=compared.module or module_of(compared.parameter) or None,
            step=compared.step,
            phase=compared.phase,
        ),
        evidence=claims(case.cell),
        fix=compared.fix,
    )


def claims(cell: CellEvidence) -> Claims:
    """The findings of the comparison with the control, if there was one."""
    return dict.fromkeys(cell.parity.claims, cell.parity.source) if cell.parity.judgement == "differs" else {}


RULE = Rule(
    family="correctness",
    detected="gradients or updates that differ from those of one process ([prove.md](prove.md)); in a matrix, or a loss, from a control's ([parity.md](parity.md))",
    fix="Look at the first tensor that differs: everything before it is equal.",
    check=control_mismatch,
    explained_by=("recomputation",),
)

"""A cell of a matrix that computes something else than its control, by the records of the probe `parity`."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence, Declined
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
    parameter = compared.parameter
    yield Draft(
        strength=Strength.within(compared.confidence) if compared.confidence else Strength.GUESS,
        summary=compared.says or "",
        where=Where(
            parameter=parameter,
            module=parameter.rpartition(".")[0] or None if parameter else None,
            step=compared.step,
            phase=compared.phase,
        ),
        evidence=claims(case.cell),
        fix=compared.fix,
    )


def claims(cell: CellEvidence) -> Claims:
    """The findings of the comparison with the control, if there was one."""
    if cell.parity.judgement != "differs":
        return {}
    return dict.fromkeys(cell.parity.claims, cell.parity.source)


RULE = Rule(
    name="control_mismatch",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="in a matrix: a loss, gradients or updates that differ from a control's ([parity.md](parity.md))",
    fix="Look at the first tensor that differs: everything before it is equal.",
    check=control_mismatch,
    explained_by=("recomputation",),
    confused_with=("healthy",),
)

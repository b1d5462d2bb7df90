"""States that came back otherwise where that may be meant: a remark on a job that completed, not a failure."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import source
from nsadiag.analysis.rules.correctness.duplicate_inputs import Remark
from nsadiag.analysis.rules.correctness.states.restarts import restarts


def came_back_otherwise(case: Case) -> Remark | None:
    """The remark on the first restart whose model is that of a moment, and whose other states are not."""
    for restart in restarts(case):
        if kinds := restart.otherwise:
            at, back = restart.step
            names = " and ".join(kinds)
            return Remark(
                sentence=f"At step {at} the model is again what it was when the optimizer's state was taken, and its {names} came back otherwise, which may be meant.",
                evidence={
                    f"sums over the parameters of {back.name} at step {at} are those at the save; of the states taken with them, {names} is another one": source(
                        case, restart.rank
                    )
                },
                fix="If the job was to go on as before, compare it with one that was not stopped: `nsadiag prove --resume`.",
            )
    return None

"""A branch on a rank's own data or state (a NaN, an early stop, an empty batch, a flag) by which it diverged from the others."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.desync.divergence import by_divergence
from nsadiag.analysis.rules.rule import Draft, Rule


def data_divergent_control_flow(case: Case) -> Iterator[Draft | Declined]:
    return by_divergence(case, "data_divergent_control_flow")


RULE = Rule(
    name="data_divergent_control_flow",
    means={"data_divergent_control_flow": "A branch on a rank's own data enters or skips a collective."},
    family="divergence",
    detected="Within one iteration a rank did not do what the others did, and the condition in between depends neither on the rank nor on counters that all share; or it left the loop by such a condition, or stopped a framework's trainer; or it reached a call that depends on counters after fewer steps than ever, where the source has one way to skip a step (an `except` or a condition). `where` is the condition, or the call that only it leads to. Of two equal sides the guilty one did something for the first time.",
    fix="Agree on the flag first: all_reduce it (MAX or MIN), then branch on the result.",
    check=data_divergent_control_flow,
    needs=("black_boxes", "stacks", "sources"),
    explained_by=("grad_sync_mismatch",),
    confused_with=("rank_conditional_collective", "uneven_inputs", "straggler_rank"),
)

"""A branch on this rank's own data or state (a NaN, an early stop, an empty batch, a flag) took it away from the others."""

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
    concludes=("data_divergent_control_flow",),
    means={"data_divergent_control_flow": "A branch on a rank's own data enters or skips a collective."},
    family="divergence",
    detected="in one iteration a rank did not do what the others did, and the condition between depends neither on the rank nor on counters that all share; or it left the loop by such a condition, or made a framework's trainer stop; or it came to a call that counters lead to after fewer steps than ever, where the source shows one way past a step, an `except` or a condition. `where` is the condition, or the call that it alone makes. Of equal sides the one that did what was never done before, or what both had not done for long, or left out what both did in four of five iterations; but where both had never been there, and the call merges what the condition counts (`if losses: gather(losses)`), the one that has nothing and skips it",
    fix="Agree on the flag first: all_reduce it (MAX or MIN), then branch on the result.",
    check=data_divergent_control_flow,
    needs=("black_boxes", "stacks", "sources"),
    explained_by=("grad_sync_mismatch",),
    confused_with=("rank_conditional_collective", "uneven_inputs", "straggler_rank"),
)

"""A branch on the rank that enters or skips a collective which all ranks of the group have to call."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.desync.divergence import by_divergence
from nsadiag.analysis.rules.rule import Draft, Rule


def rank_conditional_collective(case: Case) -> Iterator[Draft | Declined]:
    return by_divergence(case, "rank_conditional_collective")


RULE = Rule(
    name="rank_conditional_collective",
    means={"rank_conditional_collective": "A branch on the rank enters or skips a collective."},
    family="divergence",
    detected="Ranks wait in a collective of a group whose other members have passed it, and the source in between has a condition that depends on the rank, also through names, attributes, helpers, decorators, or lists filled under such a condition. The smaller side of the branch is guilty; of two equal sides the one with the rank that the condition names. Not a condition whose two sides make the same call: the ranks then diverge further in, if they do. Also where gloo aborts because the two sides sent different sizes",
    fix="Take the call out of the branch, so that every rank of the group makes it, and keep only what is rank-local (printing, writing) inside.",
    check=rank_conditional_collective,
    needs=("black_boxes", "stacks", "sources"),
    explained_by=("grad_sync_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "straggler_rank"),
)

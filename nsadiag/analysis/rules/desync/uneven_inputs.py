"""Ranks ran different numbers of batches or steps: one is through with its loop while others still train."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.desync.divergence import by_divergence
from nsadiag.analysis.rules.rule import Draft, Rule


def uneven_inputs(case: Case) -> Iterator[Draft | Declined]:
    return by_divergence(case, "uneven_inputs")


RULE = Rule(
    name="uneven_inputs",
    concludes=("uneven_inputs",),
    means={"uneven_inputs": "Ranks ran different numbers of batches or steps."},
    family="divergence",
    detected="a rank has left a loop in which others still wait, after fewer times round (counted by calls that are made in the loop alone), and the loop ended by itself: it runs over data (and not over callbacks, hooks or other tasks), asked its loader last, or stopped where the data did; or, where a framework holds the loop, its loader had run out when the others' gave another batch, one of those with which ranks meet (not where each validates by itself). Not where the others had left it as often, and are in the next epoch's. Also where the rank then came to its end. The smaller side is guilty; of equal sides the one with less. `where` is where it went on to, if that is in the loop's own function, else the loop",
    fix="Give all ranks the same number of batches (DistributedSampler with drop_last, or agree on the shortest by all_reduce(MIN)), or train under Join.",
    check=uneven_inputs,
    needs=("black_boxes", "stacks", "sources"),
    explained_by=("grad_sync_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "missing_rank"),
)

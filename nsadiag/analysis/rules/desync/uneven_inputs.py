"""Ranks with different numbers of batches or steps: one has finished its loop while others still train."""

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
    means={"uneven_inputs": "Ranks ran different numbers of batches or steps."},
    family="divergence",
    detected="A rank has left a loop in which others still wait, after fewer iterations (counted by calls that only this loop makes), and the loop ended by itself: it iterates over data (not over callbacks, hooks or other tasks), asked its loader last, or stopped where the data did. Or, where a framework runs the loop, the rank's loader was exhausted when the others' returned another batch, one for which ranks synchronize (not where each validates by itself). Not where the others had left the loop as often and are in the next epoch. Also where the rank then ended. The smaller side is guilty; of two equal sides the one with less data. `where` is where the rank went on, if that is in the loop's own function; otherwise the loop",
    fix="Give all ranks the same number of batches (DistributedSampler with drop_last, or agree on the shortest by all_reduce(MIN)), or train under Join.",
    check=uneven_inputs,
    needs=("black_boxes", "stacks", "sources"),
    explained_by=("grad_sync_mismatch",),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "missing_rank"),
)

"""Ranks do not reduce their gradients in the same backward: no_sync or the boundaries of accumulation differ."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.desync.divergence import by_divergence
from nsadiag.analysis.rules.rule import Draft, Rule


def grad_sync_mismatch(case: Case) -> Iterator[Draft | Declined]:
    return by_divergence(case, "grad_sync_mismatch")


RULE = Rule(
    name="grad_sync_mismatch",
    concludes=("grad_sync_mismatch",),
    means={
        "grad_sync_mismatch": "Ranks synchronise gradients at different steps: no_sync or accumulation differ."
    },
    family="divergence",
    detected="the same backward reduces gradients on some ranks and only accumulates them on others: `no_sync` (DDP, FSDP1), `set_requires_gradient_sync` (FSDP2), or a boundary of accumulation in the source that the ranks reached in different iterations. Of equal sides the one that does not come to the reduction is guilty. `where` is the condition that parts them: also that whose answer FSDP2's switch is given, through names, parameters and helpers, where it can differ between ranks",
    fix="Compute the boundary of accumulation from what is equal on all ranks: the same number of micro-batches and the same counter, and enter no_sync on all of them or on none.",
    check=grad_sync_mismatch,
    needs=("black_boxes", "stacks", "sources"),
    confused_with=("uneven_inputs", "collective_order_mismatch", "missing_rank"),
)

"""Ranks that reduce their gradients in different backwards: no_sync or accumulation boundaries differ."""

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
    means={
        "grad_sync_mismatch": "Ranks synchronise gradients at different steps: no_sync or accumulation differ."
    },
    family="divergence",
    detected="The same backward reduces gradients on some ranks and only accumulates them on others: by `no_sync` (DDP, FSDP1), by `set_requires_gradient_sync` (FSDP2), or by an accumulation boundary in the source that ranks reached in different iterations. Of two equal sides the one that does not reduce is guilty. `where` is the condition on which they differ, or the one whose value is passed to FSDP2's switch, through names, parameters and helpers, where it can differ between ranks",
    fix="Compute accumulation boundaries from values that all ranks share: the same number of micro-batches and the same counter, and enter no_sync on all of them or on none.",
    check=grad_sync_mismatch,
    needs=("black_boxes", "stacks", "sources"),
    confused_with=("uneven_inputs", "collective_order_mismatch", "missing_rank"),
)

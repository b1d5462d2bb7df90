"""Ranks do not reduce their gradients in the same backward: no_sync or the boundaries of accumulation differ."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Tables
from nsadiag.analysis.explain.explanation import finding_of
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.rule import Rule
from nsadiag.evidence.records import Finding


def grad_sync_mismatch(cell: CellEvidence, tables: Tables) -> Iterator[Finding | Declined]:
    yield from finding_of(
        cell,
        tables,
        "grad_sync_mismatch",
        fix="Compute the boundary of accumulation from what is equal on all ranks: the same number of micro-batches and the same counter, and enter no_sync on all of them or on none.",
        rejected={
            "uneven_inputs": "the ranks ran the same iterations up to there, and reduced in different ones",
            "collective_order_mismatch": "the calls are not swapped: one side has left them out",
            "missing_rank": "what each rank's backward was to do shows why it never comes",
        },
    )


RULE = Rule(
    name="grad_sync_mismatch",
    concludes=("grad_sync_mismatch",),
    family="divergence",
    detected="the same backward reduces gradients on some ranks and only accumulates them on others: `no_sync` (DDP, FSDP1), `set_requires_gradient_sync` (FSDP2), or a boundary of accumulation in the source that the ranks reached in different iterations. Of equal sides the one that does not come to the reduction is guilty. `where` is the condition that parts them: also that whose answer FSDP2's switch is given, through names, parameters and helpers, where it can differ between ranks",
    fix="Compute the boundary of accumulation from what is equal on all ranks, and enter no_sync on all of them or on none.",
    check=grad_sync_mismatch,
    needs=("black_boxes", "stacks", "sources"),
    confused_with=("collective_order_mismatch", "missing_rank", "uneven_inputs"),
)

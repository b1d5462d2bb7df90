"""Parameters in the optimizer but in no model that DDP wraps, so that nothing reduces their gradients."""

from __future__ import annotations

from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.replica_sums import Drift, drift, summed


def unwrapped_drift(cell: CellEvidence) -> Drift | None:
    """The drift of such parameters, if all ranks started with equal ones: those that differ from the start do so on purpose."""
    within = {p.full_name for m in cell.ranks[0].ddp for p in m.parameters}
    # Parts of the model that are called on their own have other names; unnamed ones may be anything.
    beside = {
        name
        for name in summed(cell)
        if name and not name.startswith("parameter ") and not any(_is_one(name, known) for known in within)
    }
    found = drift(cell, frozenset(beside)) if within and beside else None
    return None if found is None or found.from_start else found


def _is_one(one: str, other: str) -> bool:
    return one == other or one.endswith("." + other) or other.endswith("." + one)

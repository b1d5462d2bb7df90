"""Parameters that are trained beside DDP: in the optimizer, and in no model that DDP wraps, so that nobody reduces them."""

from __future__ import annotations

from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.replica_sums import Drift, drift, summed


def beside_ddp(cell: CellEvidence) -> Drift | None:
    """Only what all ranks began with alike: what differs from the start is each rank's own on purpose."""
    within = {p.full_name for m in cell.ranks[0].ddp for p in m.parameters}
    # Parts of the model that are called by themselves go by names of their own; what has none may be anything.
    beside = {
        name
        for name in summed(cell)
        if name and not name.startswith("parameter ") and not any(_is_one(name, known) for known in within)
    }
    found = drift(cell, frozenset(beside)) if within and beside else None
    return None if found is None or found.from_start else found


def _is_one(one: str, other: str) -> bool:
    return one == other or one.endswith("." + other) or other.endswith("." + one)

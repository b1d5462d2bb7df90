"""What a cell cost: step time by phase, and memory."""

from __future__ import annotations

import pandas as pd

from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.blackbox import Kind, Phase


def _median(values: pd.Series) -> float | None:
    return round(float(values.median()), 6) if len(values) else None


def costs(cell: CellEvidence) -> dict[str, float | int | None]:
    """Medians over ranks and steps after the first; None where nothing was measured."""
    tables = Tables(cell)
    steps, events = tables.steps, tables.events
    exits = events[(events.kind == Kind.PROCESS) & (events.phase == Phase.END)]
    return {
        "steps": max((int(r.end.get("steps") or 0) for r in cell.ranks), default=0),
        "step_s_median": _median(steps.step_s),
        "forward_s_median": _median(steps.forward_s),
        "backward_s_median": _median(steps.backward_s),
        "peak_rss_mib": round(float(exits.a.max()) / 1024, 1) if len(exits) else None,
    }

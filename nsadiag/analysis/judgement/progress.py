"""Progress of the job until its end, and what its ranks have cost each other, as every verdict says it."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.peer_waits import peer_waits
from nsadiag.analysis.relations.steadiness import furthest
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.records import PeerWait, Progress
from nsadiag.evidence.table import Table

RECENT_STEPS = 10
MOST_WAITS = 8  # ranks of which a verdict says how long they were waited for


def peer_waits_in(case: Case) -> tuple[PeerWait, ...]:
    """The ranks that were waited for, those that are now first."""
    return case.once(peer_waits).ranked()[:MOST_WAITS]


def done_by(case: Case) -> Progress:
    """Steps of an optimizer; of a loop in which none was seen to step, its iterations."""
    told = [r.end.steps for r in case.cell.ranks if r.end.steps is not None]
    done, predicted_s = max(told, default=None), _predicted_s(case.cell.path)
    pace = case.once(furthest)
    if pace is None or pace.unit == "step" or not pace.done:
        rate_per_s = _rate(case.cell, case.steps, done or 0)
        return Progress(steps_done=done, rate_per_s=rate_per_s, predicted_s=predicted_s)
    return Progress(steps_done=pace.done, unit=pace.unit, rate_per_s=pace.rate_per_s, predicted_s=predicted_s)


def _predicted_s(path: Path) -> float | None:
    """The time that earlier cells of the matrix predicted for this one."""
    told = read_json(RunDir(path=path).cell, {})
    predicted = told.get("predicted") if isinstance(told, dict) else None
    run_s = predicted.get("run_s") if isinstance(predicted, dict) else None
    value = run_s.get("value") if isinstance(run_s, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _rate(cell: CellEvidence, steps: Table, done: int) -> float | None:
    """Steps a second, of late: where steps slow down, those at the start say nothing of what is to come."""
    newest = sorted(steps.step.unique())[-max(RECENT_STEPS, steps.step.nunique() // 5) :]
    step_s = float(steps[steps.step.isin(newest)].step_s.median()) if len(steps) else 0.0
    if step_s > 0:
        return 1 / step_s
    elapsed_s = cell.watch.ended_s or 0.0
    # Of one step nobody knows how long it took: the job's start is in that time, and its end.
    return done / elapsed_s if done > 1 and elapsed_s > 0 else None

"""The costs of a cell: step time by phase, the whole run, pauses, and memory."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.phrases import TIME_PARTS
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Column


def _median(values: Column) -> float | None:
    return round(float(values.median()), 6) if len(values) else None


def _mean(values: Column) -> float | None:
    """The mean of what is known: a checkpoint is saved in few steps, and its median would be nothing."""
    known = values.known
    return round(sum(known) / len(known), 6) if known else None


def costs(cell: CellEvidence) -> dict[str, float | int | None]:
    """Medians over ranks and steps after the first, of the parts of a step means; None where nothing was measured."""
    case = Case(cell)
    steps, events = case.steps, case.events
    exits = events[(events.kind == Kind.PROCESS) & (events.phase == Phase.END)]
    began = _began_s(cell)
    return {
        "steps": max((int(r.end.steps or 0) for r in cell.ranks), default=0),
        "step_s_median": _median(steps.step_s),
        "forward_s_median": _median(steps.forward_s),
        "backward_s_median": _median(steps.backward_s),
        **{f"{part}_s_mean": _mean(case.parts[f"{part}_s"]) for part in TIME_PARTS},
        # Of all threads of a rank: what others on the machine do changes it little.
        "step_cpu_s_median": _median(steps.cpu_s),
        "peak_rss_mib": round(float(exits.a.max()) / 1024, 1) if len(exits) else None,
        "peak_device_mib": _peak_device_mib(cell),
        # From its start to its first rank (a launcher that is not warm yet imports torch), and from there to its end.
        "start_s": None if began is None else round(began, 3),
        "run_s": None if began is None else round(float(events.t_s.max()) - began, 3),
        "quiet_s": _quiet_s(cell),
    }


def _began_s(cell: CellEvidence) -> float | None:
    """The moment when the first rank opened its recording; the ring itself may have lost its first events."""
    if not cell.started_mono_ns or not any(len(r.recording.events) for r in cell.ranks):
        return None
    opened = [r.recording.header.monotonic_ns for r in cell.ranks if r.recording.header]
    return (min(opened) - cell.started_mono_ns) / 1e9


def _peak_device_mib(cell: CellEvidence) -> float | None:
    """The most that the allocator of any rank's device had given out."""
    known = [float(r.meta.memory.get("device_peak_kib") or 0) for r in cell.ranks]
    # The number itself, not its place in the table of names: of this kind alone c is one.
    for rank in cell.ranks:
        recorded = rank.recording.events
        known += [float(kib) for kib in recorded["c"][recorded["kind"] == Kind.MEMORY]]
    return round(max(known) / 1024, 1) if known and max(known) > 0 else None


def _quiet_s(cell: CellEvidence) -> float | None:
    """The longest pause without event or work, those of the start included."""
    pauses = [cell.watch.longest_quiet_s, cell.watch.longest_start_quiet_s]
    known = [pause for pause in pauses if pause is not None]
    return round(max(known), 3) if known else None

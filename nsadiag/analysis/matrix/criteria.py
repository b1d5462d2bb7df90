"""Criteria of claims: one trial confirms, refutes, or does not count, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

# Medians of steps on a machine with other work to do differ by a third without a cause.
ALIKE_WITHIN = 1.33
OFF_THE_LINE = 0.25
SUPERLINEAR_FROM = 1.25  # exponent of a power law

MEASURES = {
    "step_s_median": "time of a step",
    "forward_s_median": "time of a forward",
    "backward_s_median": "time of a backward",
    "compute_s_mean": "computing time of a step",
    "peers_s_mean": "time of a step in which it waits for peers",
    "input_s_mean": "time of a step in which it waits for input",
    "step_cpu_s_median": "CPU time of a step",
    "wall_s": "time of the cell",
    "peak_mib": "peak memory",
}
UNDECIDED = ("incomplete", "unknown")  # outcomes that say nothing of what would have become of it
Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One trial's answer; None where it does not count. `flaky` where repeats of one setting contradict each other."""

    holds: bool | None
    why: str
    flaky: bool = False


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The repeats of one setting."""

    name: str  # layers=5
    cells: tuple[Document, ...]


def judge_pair(criterion: Mapping[str, str], a: Repeats, b: Repeats, parity: Sequence[Document]) -> Judged:
    """Two settings of one factor, all else equal. `parity`: the cells that were compared by what they compute."""
    form = criterion["form"]
    if form == "only":
        return _only(criterion, a, b)
    if form == "both":
        return _both(criterion, a, b)
    if form == "verdicts":
        return _verdicts(a, b)
    if form == "parity":
        return _parity(a, b, parity)
    return _ratio(criterion, a, b)


def judge_phase(criterion: Mapping[str, str], side: Repeats) -> Judged:
    """Judge whether a job that did not finish was in this phase."""
    phases = {phase for cell in side.cells if (phase := _phase(cell))}
    if len(phases) != 1:
        return Judged(holds=None, why=f"{side.name}: where it stood is not known", flaky=len(phases) > 1)
    phase = phases.pop()
    return Judged(holds=phase == criterion["phase"], why=f"{side.name}: it stood in {phase}")


def judge_shape(criterion: Mapping[str, str], sides: Sequence[Repeats]) -> Judged:
    """Judge how a cost grows along numbers."""
    values = [(side, _measured(side, criterion["metric"])) for side in sides]
    lacking = [side.name for side, value in values if value is None]
    if lacking:
        return Judged(holds=None, why=f"not measured: {', '.join(lacking)}")
    x = np.array([float(side.name.partition("=")[2]) for side in sides])
    y = np.array([value for _, value in values], dtype=float)
    shape = shape_of(x, y)
    told = ", ".join(f"{side.name} {amount(criterion['metric'], value)}" for side, value in values)
    name = MEASURES.get(criterion["metric"], criterion["metric"])
    return Judged(holds=_bears_out(shape, criterion["shape"]), why=f"{name} {shape}: {told}")


def shape_of(x: np.ndarray, y: np.ndarray) -> str:
    """constant, linear, superlinear, or irregular where it is none of them."""
    if y.min() <= 0:
        return "irregular"
    if y.max() / y.min() <= ALIKE_WITHIN:
        return "constant"
    if len(x) < 3:
        return "not constant"
    # Errors count in proportion: else the largest value alone would say where the line is.
    slope, start = np.polyfit(x, y, 1, w=1 / y)
    line = start + slope * x
    if slope > 0 and np.all(np.abs(y - line) <= OFF_THE_LINE * y):
        return "linear"
    exponent, level = np.polyfit(np.log(x), np.log(y), 1) if x.min() > 0 else (0.0, 0.0)
    power = np.exp(level + exponent * np.log(x)) if x.min() > 0 else line
    if exponent >= SUPERLINEAR_FROM and np.all(np.abs(y - power) <= 2 * OFF_THE_LINE * y):
        return "superlinear"
    return "irregular"


def _bears_out(shape: str, claimed: str) -> bool | None:
    if shape == "not constant":
        return False if claimed == "constant" else None
    return None if shape == "irregular" and claimed != "constant" else shape == claimed


def _only(criterion: Mapping[str, str], a: Repeats, b: Repeats) -> Judged:
    failing, other = (b, a) if criterion["side"] == "b" else (a, b)
    what = criterion.get("what", "fails")
    there, here = _agreed(failing, what), _agreed(other, what)
    why = f"{_told(a)}; {_told(b)}"
    if there.flaky or here.flaky:
        return Judged(holds=None, why=f"{there.why or here.why}", flaky=True)
    if there.holds is False:
        return Judged(holds=False, why=why)
    if here.holds is True:
        # "fails" alone names no failure: where both fail, but in different ways, each hides the factor's part.
        alike = what != "fails" or _classes(failing) == _classes(other)
        return Judged(holds=False if alike else None, why=why if alike else f"{why}: for different reasons")
    if there.holds is None or here.holds is None:
        return Judged(holds=None, why=f"{why}: that does not count")
    return Judged(holds=True, why=why)


def _both(criterion: Mapping[str, str], a: Repeats, b: Repeats) -> Judged:
    first, second = _agreed(a, criterion["a"]), _agreed(b, criterion["b"])
    why = f"{_told(a)}; {_told(b)}"
    if first.flaky or second.flaky:
        return Judged(holds=None, why=first.why or second.why, flaky=True)
    answers = {first.holds, second.holds}
    return Judged(holds=False if False in answers else None if None in answers else True, why=why)


def _verdicts(a: Repeats, b: Repeats) -> Judged:
    kinds = [{_kind(cell) for cell in side.cells if _is_judged(cell)} for side in (a, b)]
    why = f"{_told(a)}; {_told(b)}"
    if any(len(kind) > 1 for kind in kinds):
        return Judged(holds=None, why=f"repeats differ: {why}", flaky=True)
    if not all(kinds):
        return Judged(holds=None, why=f"{why}: that does not count")
    return Judged(holds=kinds[0] != kinds[1], why=why)


def _parity(a: Repeats, b: Repeats, parity: Sequence[Document]) -> Judged:
    """By loss and gradients: whether b computes something else than a."""
    ids = [{str(cell.get("id")) for cell in side.cells} for side in (a, b)]
    rows = [row for row in parity if row.get("control") in ids[0] and row.get("cell") in ids[1]]
    told = {row["judgement"] for row in rows if row.get("judgement") in ("same", "differs")}
    if len(told) > 1:
        return Judged(holds=None, why=f"{b.name} differs from {a.name} in some repeats", flaky=True)
    if not told:
        why = next((str(row["why"]) for row in rows if row.get("why")), "they were not compared")
        return Judged(holds=None, why=f"{b.name} and {a.name}: {why}")
    says = next((f": {row['says']}" for row in rows if row.get("says")), "")
    if told == {"differs"}:
        return Judged(holds=True, why=f"{b.name} differs from {a.name}{says}")
    return Judged(holds=False, why=f"{b.name} computes the same as {a.name}")


def _ratio(criterion: Mapping[str, str], a: Repeats, b: Repeats) -> Judged:
    by_letter = {"a": a, "b": b}
    metric = criterion["metric"]
    upper, lower = (by_letter[criterion[key]] for key in ("side", "other"))
    over, under = _measured(upper, metric), _measured(lower, metric)
    if not over or not under:
        return Judged(holds=None, why=f"not measured: {upper.name if not over else lower.name}")
    ratio = over / under
    name = MEASURES.get(metric, metric)
    why = (
        f"{name} {ratio:.2f} times: {upper.name} {amount(metric, over)}, {lower.name} {amount(metric, under)}"
    )
    return Judged(holds=ratio > float(criterion["times"]), why=why)


def _agreed(side: Repeats, what: str) -> Judged:
    """The answer of all repeats that count."""
    answers = [a for cell in side.cells if (a := answer(cell, what)) is not None]
    if len(set(answers)) > 1:
        said = f"{side.name}: {sum(answers)} of {len(answers)} repeats {_verb(what)}"
        return Judged(holds=None, why=said, flaky=True)
    return Judged(holds=answers[0] if answers else None, why="")


def answer(cell: Document, what: str) -> bool | None:
    """Judge whether the cell is `what` (an outcome, a class, fails). None: it does not count.

    A cell that failed in another way could not show it; one that ran out of time was not seen to its end,
    which still tells that it was not hung.
    """
    verdict = cell.get("verdict") or {}
    outcome, cls = verdict.get("outcome", "unknown"), verdict.get("class", "unknown")
    if outcome in UNDECIDED:
        return what == outcome or None
    cut_short = cell.get("stopped") == "timeout"
    if what in (outcome, cls):
        return None if what == "healthy" and cut_short else True
    if what == "fails":
        return outcome in ("hung", "crashed", "wrong") or (None if cut_short else False)
    if what == "hung":
        return None if outcome == "crashed" else False
    if what == "healthy":
        return False
    return False if outcome == "healthy" and not cut_short else None


def _verb(what: str) -> str:
    return "fail" if what == "fails" else f"are {what}"


def _is_judged(cell: Document) -> bool:
    return _kind(cell)[0] not in UNDECIDED and cell.get("stopped") != "timeout"


def _kind(cell: Document) -> tuple[str, str]:
    verdict = cell.get("verdict") or {}
    return verdict.get("outcome", "unknown"), verdict.get("class", "unknown")


def _classes(side: Repeats) -> set[str]:
    return {_kind(cell)[1] for cell in side.cells if answer(cell, "fails")}


def _told(side: Repeats) -> str:
    """`layers=5: hung (missing_rank), 2 of 2`."""
    seen: dict[str, int] = {}
    for cell in side.cells:
        kind = _kind_in_words(cell)
        seen[kind] = seen.get(kind, 0) + 1
    if not seen:
        return f"{side.name}: not run"
    parts = [
        f"{kind}{f', {n} of {len(side.cells)}' if len(side.cells) > 1 else ''}" for kind, n in seen.items()
    ]
    return f"{side.name}: {' and '.join(parts)}"


def _kind_in_words(cell: Document) -> str:
    if not cell.get("verdict"):
        state = str(cell.get("state", "pending"))
        return {"pending": "not run", "skipped": "not run, for want of GPUs"}.get(state, state)
    outcome, cls = _kind(cell)
    words = outcome if outcome == cls else f"{outcome} ({cls})"
    return f"{words} until its time was up" if cell.get("stopped") == "timeout" else words


def _phase(cell: Document) -> str | None:
    verdict = cell.get("verdict") or {}
    if verdict.get("outcome") == "healthy" and cell.get("stopped") != "timeout":
        return None
    return (verdict.get("where") or {}).get("phase")


def _measured(side: Repeats, metric: str) -> float | None:
    """The median of the repeats that ran to their end, or were seen to advance."""
    values = []
    for cell in side.cells:
        value = _cost(cell, metric)
        if isinstance(value, int | float) and _kind(cell)[0] in ("healthy", "slow", "wrong"):
            values.append(float(value))
    return median(values) if values else None


def _cost(cell: Document, metric: str) -> Any:
    costs = cell.get("costs") or {}
    if metric == "peak_mib":
        return costs.get("peak_device_mib") or costs.get("peak_rss_mib")
    return cell.get("wall_s") if metric == "wall_s" else costs.get(metric)


def amount(metric: str, value: float | None) -> str:
    """`1.25 s` or `512 MiB`."""
    if value is None:
        return "-"
    if metric.endswith("_mib"):
        return f"{value:.0f} MiB"
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1000:.3g} ms"

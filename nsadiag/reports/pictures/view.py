"""All pictures of one run, from its directory; one that cannot be drawn is named, and the page goes without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from nsadiag.analysis.case import Case
from nsadiag.analysis.ingest import sources
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.user_code import counted, valid_roots
from nsadiag.printing import one_line
from nsadiag.reports.load import cell_of
from nsadiag.reports.model import RunReport
from nsadiag.reports.pictures.calls import CallGrid, call_grid
from nsadiag.reports.pictures.costs import Costs, costs_of
from nsadiag.reports.pictures.records import Log, cited, logs_of
from nsadiag.reports.pictures.snippets import Snippet, snippets_of
from nsadiag.reports.pictures.stacks import Side, sides_of
from nsadiag.reports.pictures.timeline import Timeline, timeline_of
from nsadiag.reports.pictures.waits import WaitPicture, waits_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class View:
    """The pictures of one run; whatever there was no evidence for is empty."""

    calls: CallGrid | None = None  # of what other tools collected
    timeline: Timeline | None = None
    waits: WaitPicture | None = None
    snippets: tuple[Snippet, ...] = ()
    sides: tuple[Side, ...] = ()
    costs: Costs = field(default_factory=Costs)
    cited: dict[str, str] = field(default_factory=dict)
    logs: tuple[Log, ...] = ()
    gaps: tuple[str, ...] = ()
    cell: CellEvidence | None = field(default=None, repr=False)  # as it was read: that may take a minute


def view_of(run: RunReport) -> View:
    """Never raises on what lies in the directory: evidence may be damaged in ways that nobody has thought of."""
    gaps: list[str] = []
    no_records: dict[str, str] = {}
    no_logs: tuple[Log, ...] = ()
    records = _drawn("cited records", lambda: cited(run), no_records, gaps)
    logs = _drawn("logs", lambda: tuple(logs_of(run)), no_logs, gaps)
    cell = _drawn("evidence", lambda: cell_of(run), None, gaps)
    if cell is None:
        return View(cited=records, logs=logs, gaps=tuple(gaps))
    case, verdict = Case(cell), run.verdict
    with (
        counted(root for rank in cell.ranks for root in valid_roots(rank.meta.user_code)),
        sources.shown(cell),
    ):
        return View(
            calls=_drawn("calls", lambda: call_grid(case, verdict), None, gaps),
            timeline=_drawn("timeline", lambda: timeline_of(case, verdict), None, gaps),
            waits=_drawn("wait-for graph", lambda: waits_of(case, verdict), None, gaps),
            snippets=_drawn("source", lambda: tuple(snippets_of(cell, verdict)), (), gaps),
            sides=_drawn("stacks", lambda: tuple(sides_of(case, verdict)), (), gaps),
            costs=_drawn("step times", lambda: costs_of(case, verdict), Costs(), gaps),
            cited=records,
            logs=logs,
            gaps=tuple(gaps),
            cell=cell,
        )


def _drawn(name: str, draw: Callable[[], T], otherwise: T, gaps: list[str]) -> T:
    try:
        return draw()
    except Exception as error:  # a verdict without one of its pictures is better than none
        gaps.append(f"{name} could not be shown: {type(error).__name__}: {one_line(error)[:200]}")
        return otherwise

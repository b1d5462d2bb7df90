"""The black boxes as a timeline, in Chrome's trace event format: for ui.perfetto.dev, or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nsadiag.errors import UsageError
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.reports.cleaners.data import Json, json_text
from nsadiag.reports.load import cell_of
from nsadiag.reports.model import MatrixReport, Report, RunReport

if TYPE_CHECKING:
    from nsadiag.analysis.case import Case
    from nsadiag.analysis.records import RankEvidence

KINDS = {int(kind) for kind in Kind}


def render_perfetto(report: Report) -> Json:
    """The document. A process is a rank; what had not ended is left open, as it was. Raises UsageError for a matrix."""
    run = only_run(report, "perfetto")
    from nsadiag.analysis.case import Case

    cell = cell_of(run)
    case = Case(cell)
    found: list[dict[str, Any]] = []
    for rank in cell.ranks:
        host = rank.meta.host
        name = f"rank {rank.rank}" + (f" on {host}" if host else "")
        found.append({"ph": "M", "name": "process_name", "pid": rank.rank, "args": {"name": name}})
        found.append(
            {"ph": "M", "name": "process_sort_index", "pid": rank.rank, "args": {"sort_index": rank.rank}}
        )
        found += _of_rank(case, rank)
    found += _moments(run.verdict) if run.verdict else ()
    return json_text({"displayTimeUnit": "ms", "traceEvents": found}, indent=None)


def only_run(report: Report, format_: str) -> RunReport:
    """The report, if it is of a single run. Raises UsageError for a matrix, which has many."""
    if isinstance(report, MatrixReport):
        cell = report.failing_first()[0].run.directory if report.cells else report.directory / "cells" / "..."
        raise UsageError(
            f"--format {format_} shows one run, and {report.directory} is a matrix",
            f"give one of its cells: nsadiag report {cell} --format {format_}",
        )
    return report


def _of_rank(case: Case, rank: RankEvidence) -> Iterator[dict[str, Any]]:
    """A span as a slice; one that is not over stays open, and what has no duration is an instant."""
    events = case.events_of(rank.rank)
    for span in case.spans(rank, *events.kind.unique()):
        at = _at(
            rank.rank, span.kind, span.name, span.thread, span.begin_s, span.step, span.place, span.detail
        )
        if span.end_s is None:
            yield {**at, "ph": "B", "args": {**at["args"], "still open": True}}
        else:
            yield {**at, "ph": "X", "dur": span.end_s * 1e6 - at["ts"]}
    instants = events[(events.phase != Phase.BEGIN) & (events.phase != Phase.END)]
    for row in instants[["kind", "name", "thread", "t_s", "step", "site", "detail"]].itertuples():
        yield {**_at(rank.rank, *row), "ph": "i", "s": "t"}


def _at(
    rank: int, number: int, name: str, thread: int, t_s: float, step: int, place: str, detail: str
) -> dict[str, Any]:
    """The keys that a slice and an instant have in common."""
    kind = Kind(number).name.lower() if number in KINDS else f"kind {number}"
    said = {key: text for key, text in (("at", place), ("detail", detail)) if text}
    at = {"name": name or kind, "cat": kind, "pid": rank, "tid": thread, "ts": t_s * 1e6}
    return {**at, "args": {"step": step, **said}}


def _moments(verdict: Verdict) -> Iterator[dict[str, Any]]:
    times = verdict.times
    for name, t_s in (
        ("last progress", times.onset_s),
        (f"found {verdict.outcome}: {verdict.cls}", times.detected_s),
        ("verdict", times.verdict_s),
    ):
        if t_s is not None:
            yield {"ph": "i", "s": "g", "name": name, "cat": "nsadiag", "pid": 0, "tid": 0, "ts": t_s * 1e6}

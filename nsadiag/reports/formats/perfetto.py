"""The black boxes as a timeline, in Chrome's trace event format: for ui.perfetto.dev, or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsadiag.errors import UsageError
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.reports.cleaners.data import Json, json_text
from nsadiag.reports.load import cell_of
from nsadiag.reports.model import MatrixReport, Report, RunReport

KINDS = {int(kind) for kind in Kind}


def render_perfetto(report: Report) -> Json:
    """The document. A process is a rank; what had not ended is left open, as it was. Raises UsageError for a matrix."""
    run = only_run(report, "perfetto")
    from nsadiag.analysis.case import Case

    cell = cell_of(run)
    events = Case(cell).events
    found: list[dict[str, Any]] = []
    for rank in cell.ranks:
        host = rank.meta.host
        name = f"rank {rank.rank}" + (f" on {host}" if host else "")
        found.append({"ph": "M", "name": "process_name", "pid": rank.rank, "args": {"name": name}})
        found.append(
            {"ph": "M", "name": "process_sort_index", "pid": rank.rank, "args": {"sort_index": rank.rank}}
        )
        found += _of_rank(rank.rank, events[events["rank"] == rank.rank].to_dict())
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


def _of_rank(rank: int, rows: list[dict[Any, Any]]) -> Iterator[dict[str, Any]]:
    """Begin and end of the same thing as one slice; a begin alone stays open, an end alone was written over its begin."""
    open_: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        number, thread, microseconds = int(row["kind"]), int(row["thread"]), float(row["t_s"]) * 1e6
        kind = Kind(number).name.lower() if number in KINDS else f"kind {number}"
        name = str(row["name"]) or kind
        at = {"name": name, "cat": kind, "pid": rank, "tid": thread, "ts": microseconds}
        at["args"] = {"step": int(row["step"]), **_told(row)}
        begun = open_.setdefault((thread, number, name), [])
        if row["phase"] == Phase.BEGIN:
            begun.append(at)
        elif row["phase"] != Phase.END:
            yield {**at, "ph": "i", "s": "t"}
        elif begun:
            first = begun.pop()
            yield {**first, "ph": "X", "dur": microseconds - first["ts"]}
    for first in (each for begun in open_.values() for each in begun):
        yield {**first, "ph": "B", "args": {**first["args"], "still open": True}}


def _told(row: dict[Any, Any]) -> dict[str, str]:
    return {key: str(row[column]) for key, column in (("at", "site"), ("detail", "detail")) if row[column]}


def _moments(verdict: Verdict) -> Iterator[dict[str, Any]]:
    times = verdict.times
    for name, t_s in (
        ("last progress", times.onset_s),
        (f"found {verdict.outcome}: {verdict.cls}", times.detected_s),
        ("verdict", times.verdict_s),
    ):
        if t_s is not None:
            yield {"ph": "i", "s": "g", "name": name, "cat": "nsadiag", "pid": 0, "tid": 0, "ts": t_s * 1e6}

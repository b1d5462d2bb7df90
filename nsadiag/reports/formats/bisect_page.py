"""The page of a bisection: the answer, the points with what a step cost, and pictures of the run at the boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.errors import UsageError
from nsadiag.reports import bisect
from nsadiag.reports.cleaners.page import Page, page
from nsadiag.reports.formats.html import links_of, template_of
from nsadiag.reports.load import load_report
from nsadiag.reports.model import RunReport
from nsadiag.reports.pictures.view import view_of
from nsadiag.reports.sources import source_href, within

STATES = {
    "good": ("✓", "is-healthy"),
    "bad": ("✗", "is-hung"),
    "flaky": ("~", "is-slow"),
    "other": ("?", "is-unknown"),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One point."""

    label: str
    how: str
    failed: str
    step: str
    share: float  # of the longest step, in hundredths
    letter: str
    style: str
    directory: str
    root: Path


def render_bisect(document: Mapping[str, Any], directory: Path) -> Page:
    """The page; every value in it is escaped."""
    failing = _failing(document, directory)
    text = template_of("bisect.html.jinja").render(
        name=document["name"],
        fixed=document["fixed"],
        axis=document["axis"],
        summary=document["summary"],
        points_in_all=document["points_in_all"],
        command=" ".join(map(str, document["command"])),
        rows=_rows(document, directory),
        failing=failing,
        view=view_of(failing) if failing else None,
        **{
            **links_of(directory),
            "source_href": lambda row, text: source_href(row.root, row.root, f"{text}/verdict.json"),
        },
    )
    return page(text)


def _rows(document: Mapping[str, Any], directory: Path) -> list[Row]:
    points = [point for point in document["points"] if point["runs"]]
    steps = [point.get("step_s") or 0.0 for point in points]
    longest = max(steps, default=0.0) or 1.0
    found = []
    for point, step_s, row in zip(points, steps, bisect.rows(document), strict=True):
        letter, style = STATES.get(point["state"], ("?", "is-unknown"))
        label, how, failed, step, where = row
        found.append(
            Row(
                label=label, how=how, failed=failed, step=step, share=round(step_s / longest * 100, 1),
                letter=letter, style=style, directory=where, root=directory,
            )
        )  # fmt: skip
    return found


def _failing(document: Mapping[str, Any], directory: Path) -> RunReport | None:
    """The run at the boundary, if it lies in this directory."""
    run = bisect.boundary(document)
    if run is None:
        return None
    place = within(directory, str(run["directory"]))
    if place is None:
        return None
    try:
        report = load_report(place)
    except UsageError:  # it was not kept
        return None
    return report if isinstance(report, RunReport) else None

"""The page of a comparison: what differs, both verdicts, times as bars, the pictures of either side, and what is equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.analysis.diff import Row
from nsadiag.errors import NsadiagError
from nsadiag.reports.cleaners.page import Page, page
from nsadiag.reports.formats.html import template_of
from nsadiag.reports.load import load_report
from nsadiag.reports.model import RunReport
from nsadiag.reports.pictures.view import View, view_of
from nsadiag.reports.words import value_text


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A row in words; shares are hundredths of the greater of the two values."""

    section: str
    name: str
    a: str
    b: str
    differs: bool
    ratio: str = ""
    share_a: float = 0.0
    share_b: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One side: its letter, its path, and its report where it is a run."""

    letter: str
    path: str
    run: RunReport | None
    view: View | None


def render_diff(rows: Sequence[Row], a: Path, b: Path, summary: str) -> Page:
    """The page; every value in it is escaped. It links to no file, as the two sides may lie anywhere."""
    shown = [_shown(row) for row in rows]
    text = template_of("diff.html.jinja").render(
        summary=summary,
        state="unknown" if any(row.differs and row.section != "timing" for row in rows) else "healthy",
        sides=[_compared("a", a), _compared("b", b)],
        differing=[row for row in shown if row.differs and row.section != "timing"],
        timing=[row for row in shown if row.section == "timing"],
        equal=[row for row in shown if not row.differs and row.section != "timing"],
        source_href=lambda run, source: None,
    )
    return page(text)


def _compared(letter: str, path: Path) -> Compared:
    run = next(_report(path), None)
    return Compared(letter=letter, path=str(path), run=run, view=view_of(run) if run else None)


def _report(path: Path) -> Iterator[RunReport]:
    """Nothing of a rank, or of what cannot be read as a run."""
    if path.resolve().parent.name == "ranks":
        return
    try:
        report = load_report(path)
    except NsadiagError:
        return
    if isinstance(report, RunReport):
        yield report


def _shown(row: Row) -> Shown:
    greater = max((abs(value) for value in (row.a, row.b) if _is_number(value)), default=0.0)
    shares = [
        round(abs(value) / greater * 100, 1) if greater and _is_number(value) else 0.0
        for value in (row.a, row.b)
    ]
    return Shown(
        section=row.section,
        name=row.name,
        a=value_text(row.a),
        b=value_text(row.b),
        differs=row.differs,
        ratio=f"{row.ratio:.2f}" if row.ratio is not None else "",
        share_a=shares[0],
        share_b=shares[1],
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

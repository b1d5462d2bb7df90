"""Renders what is on disk: for a terminal, a repository, a browser, a program."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from nsadiag.reports.document import render_json
from nsadiag.reports.html import render_html
from nsadiag.reports.issue import render_issue
from nsadiag.reports.junit import render_junit
from nsadiag.reports.load import load_report
from nsadiag.reports.markdown import render_markdown
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.perfetto import render_perfetto
from nsadiag.reports.speedscope import render_speedscope
from nsadiag.reports.terminal import print_report, render_terminal

__all__ = ["REPORTERS", "MatrixReport", "Report", "RunReport", "load_report", "print_report", "write_reports"]

Reporter: TypeAlias = Callable[[Report], str]

REPORTERS: dict[str, Reporter] = {
    "terminal": render_terminal,
    "md": render_markdown,
    "html": render_html,
    "json": render_json,
    "junit": render_junit,
    "issue": render_issue,
    "perfetto": render_perfetto,
    "speedscope": render_speedscope,
}


def write_reports(directory: Path) -> None:
    """Writes report.md and report.html into the directory; raises UsageError if it is no run directory."""
    report = load_report(directory)
    _replace(directory / "report.md", render_markdown(report))
    _replace(directory / "report.html", render_html(report))


def _replace(path: Path, text: str) -> None:
    """In one step: a reader, or a killed writer, never meets half a report."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

"""Every format of a report by its name. A command that prints to a terminal need not import it: drawing libraries take long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from nsadiag.errors import unwritable
from nsadiag.evidence.layout import replace_private
from nsadiag.printing import Shown
from nsadiag.reports.formats.document import render_json
from nsadiag.reports.formats.github import render_github
from nsadiag.reports.formats.html import render_html
from nsadiag.reports.formats.issue import render_issue
from nsadiag.reports.formats.junit import render_junit
from nsadiag.reports.formats.markdown import render_markdown
from nsadiag.reports.formats.perfetto import render_perfetto
from nsadiag.reports.formats.sarif import render_sarif
from nsadiag.reports.formats.speedscope import render_speedscope
from nsadiag.reports.load import load_report
from nsadiag.reports.model import Report
from nsadiag.reports.terminal.run import render_terminal

# What a reporter returns, a cleaner has made: a `str` would be an error of types.
Reporter: TypeAlias = Callable[[Report], Shown]

REPORTERS: dict[str, Reporter] = {
    "terminal": render_terminal,
    "md": render_markdown,
    "html": render_html,
    "json": render_json,
    "junit": render_junit,
    "github": render_github,
    "sarif": render_sarif,
    "issue": render_issue,
    "perfetto": render_perfetto,
    "speedscope": render_speedscope,
}


def write_reports(directory: Path) -> None:
    """Writes report.md and report.html into the directory; raises UsageError if it is no run directory."""
    write_rendered(load_report(directory), directory)


def write_rendered(report: Report, directory: Path) -> None:
    """Writes report.md and report.html of a report into the directory. Raises MachineError where that fails."""
    for name, text in (("report.md", render_markdown(report)), ("report.html", render_html(report))):
        # The name of a file may be in no encoding at all.
        try:
            replace_private(directory / name, text.encode(errors="surrogateescape"))
        except OSError as error:
            raise unwritable(error) from None

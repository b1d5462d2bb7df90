"""GitHub's workflow commands: an annotation at the guilty line of each finding."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from nsadiag.evidence.records import Verdict
from nsadiag.reports.model import MatrixReport, Report
from nsadiag.reports.words import one_line

MOST = 10  # annotations of one step that GitHub shows
LEVELS = {"slow": "warning", "unknown": "warning", "incomplete": "warning"}


def render_github(report: Report) -> str:
    """One line a finding, for a step of a workflow to print; nothing for what is healthy."""
    return "".join(f"{annotation_of(verdict)}\n" for verdict in [*_verdicts(report)][:MOST])


def _verdicts(report: Report) -> Iterable[Verdict]:
    if isinstance(report, MatrixReport):
        yield from (group.verdict for group in report.findings())
    elif report.verdict and report.verdict.outcome != "healthy":
        yield report.verdict


def annotation_of(verdict: Verdict) -> str:
    """`::error file=train.py,line=41,title=...::...`, with what has a meaning there escaped."""
    level = LEVELS.get(verdict.outcome, "error")
    where, place = verdict.where, ""
    if where and where.file:
        root = os.environ.get("GITHUB_WORKSPACE", str(Path.cwd()))
        file = os.path.relpath(where.file, root) if where.file.startswith(f"{root}/") else where.file
        place = f"file={_property(file)}," + (f"line={where.line}," if where.line else "")
    said = verdict.summary + (f" {verdict.fix}" if verdict.fix else "")
    return f"::{level} {place}title={_property(f'nsadiag: {verdict.cls}')}::{_text(said)}"


def _text(value: str) -> str:
    return one_line(value).replace("%", "%25")


def _property(value: str) -> str:
    return _text(value).replace(":", "%3A").replace(",", "%2C")

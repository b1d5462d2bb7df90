"""GitHub's workflow commands: an annotation at the guilty line of each finding."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from nsadiag.evidence.records import Verdict, Where
from nsadiag.printing import Commands
from nsadiag.reports.cleaners.annotation import annotation, together
from nsadiag.reports.model import MatrixReport, Report

MOST = 10  # annotations of one step that GitHub shows
LEVELS: dict[str, Literal["error", "warning"]] = {
    "slow": "warning",
    "unknown": "warning",
    "incomplete": "warning",
}


def render_github(report: Report) -> Commands:
    """One line a finding, for a step of a workflow to print; nothing for what is healthy."""
    return together(annotation_of(verdict) for verdict in [*findings_of(report)][:MOST])


def findings_of(report: Report) -> Iterable[Verdict]:
    """The verdicts that are to be shown: all but healthy ones."""
    if isinstance(report, MatrixReport):
        yield from (group.verdict for group in report.findings())
    elif report.verdict and report.verdict.outcome != "healthy":
        yield report.verdict


def annotation_of(verdict: Verdict) -> Commands:
    """The command for one finding, at its line."""
    because = verdict.because
    cause = f" Because of {Path(because.file).name}:{because.line}: {because.words}." if because else ""
    said = verdict.summary + cause + (f" {verdict.fix}" if verdict.fix else "")
    properties = {**_place(verdict.where or Where()), "title": f"nsadiag: {verdict.cls}"}
    return annotation(LEVELS.get(verdict.outcome, "error"), properties, said)


def _place(where: Where) -> dict[str, str]:
    """File and line, the file relative to the repository where it lies in it."""
    if not where.file:
        return {}
    return {"file": within_repository(where.file), "line": str(where.line or "")}


def within_repository(file: str) -> str:
    """The path relative to the repository where it lies in it; a relative one is so already."""
    root = os.environ.get("GITHUB_WORKSPACE", str(Path.cwd()))
    return os.path.relpath(file, root) if file.startswith(f"{root}/") else file

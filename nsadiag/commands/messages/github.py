"""GitHub Actions: an annotation at the guilty line, and the report in the job's summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from nsadiag.evidence.records import Verdict
from nsadiag.reports import REPORTERS, MatrixReport, Report
from nsadiag.reports.words import one_line

MOST = 10  # annotations of one step that GitHub shows
MOST_BYTES = 900_000  # of a summary; GitHub takes 1 MiB
LEVELS = {"slow": "warning", "unknown": "warning", "incomplete": "warning"}


def annotate(report: Report) -> None:
    """Does nothing elsewhere, and nothing for what is healthy but its summary."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for verdict in [*_verdicts(report)][:MOST]:
        print(_annotation(verdict), file=sys.stderr, flush=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        text = REPORTERS["md"](report).encode(errors="replace")
        try:
            with Path(summary).open("ab") as file:
                file.write(text if len(text) <= MOST_BYTES else text[:MOST_BYTES] + b"\n\n...\n")
        except OSError as error:
            print(f"nsadiag: no summary for GitHub: {error.strerror}", file=sys.stderr)


def _verdicts(report: Report) -> Iterable[Verdict]:
    if isinstance(report, MatrixReport):
        yield from (group.verdict for group in report.findings())
    elif report.verdict and report.verdict.outcome != "healthy":
        yield report.verdict


def _annotation(verdict: Verdict) -> str:
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

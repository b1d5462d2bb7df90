"""GitHub Actions: an annotation at the guilty line, and the report in the job's summary."""

from __future__ import annotations

import os
from pathlib import Path

from nsadiag.printing import note
from nsadiag.reports.formats.registry import REPORTERS
from nsadiag.reports.model import Report

MOST_BYTES = 900_000  # of a summary; GitHub takes 1 MiB


def annotate(report: Report) -> None:
    """Does nothing elsewhere, and nothing for what is healthy but its summary."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    note(REPORTERS["github"](report), end="")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        text = REPORTERS["md"](report).encode(errors="replace")
        try:
            with Path(summary).open("ab") as file:
                file.write(text if len(text) <= MOST_BYTES else text[:MOST_BYTES] + b"\n\n...\n")
        except OSError as error:
            note(f"nsadiag: no summary for GitHub: {error.strerror}")

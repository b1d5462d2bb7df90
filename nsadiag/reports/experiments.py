"""Renders the directory of a bisection or of a shrinking, for `nsadiag report`."""

from __future__ import annotations

from pathlib import Path

from nsadiag.errors import UsageError
from nsadiag.evidence.layout import read_json
from nsadiag.printing import Shown
from nsadiag.reports.cleaners.data import json_text
from nsadiag.reports.cleaners.plain import plain

KINDS = ("bisect", "shrink")


def is_experiment(directory: Path) -> bool:
    return read_json(directory / "run.json", {}).get("kind") in KINDS


def render_experiment(directory: Path, format_: str) -> Shown:
    """The document, ending in a newline. Raises UsageError for a format that there is not."""
    kind = read_json(directory / "run.json", {}).get("kind")
    document = read_json(directory / f"{kind}.json")
    if document is None:
        raise UsageError(f"{directory} holds no {kind}.json", "it was ended before its first run was over")
    from nsadiag.reports import bisect, shrink  # drawing libraries come with them

    markdown, lines = (bisect.markdown, bisect.lines) if kind == "bisect" else (shrink.markdown, shrink.lines)
    if format_ == "json":
        return json_text(document)
    if format_ == "md":
        return markdown(document)
    if format_ == "terminal":
        return plain("\n".join(lines(document, directory)) + "\n")
    if format_ == "html" and kind == "bisect":
        from nsadiag.reports.formats.bisect_page import render_bisect  # the analysis comes with its pictures

        return render_bisect(document, directory)
    formats = "terminal, md, html or json" if kind == "bisect" else "terminal, md or json"
    raise UsageError(f"no such format for this: {format_}", f"choose {formats}")

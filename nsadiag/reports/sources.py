"""Links from a claim to the file that proves it, relative to the report."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote


def source_href(report_directory: Path, run_directory: Path, source: str) -> str | None:
    """A relative link to the source's file, or None if no such file lies in the run directory.

    A source is `path#place in it`; the place is for readers, as no viewer of JSON jumps to it. Only files
    that exist inside the run directory become links, so no text in a verdict can lead elsewhere.
    """
    path = source.partition("#")[0].strip()
    file = within(run_directory, path) if path else None
    return relative_href(report_directory, run_directory / path) if file and file.is_file() else None


def within(directory: Path, name: str) -> Path | None:
    """The place that a document names, links followed; None where it lies elsewhere, or nothing can have that name."""
    try:
        root = directory.resolve()
        place = (root / name).resolve()
    except (OSError, ValueError, RuntimeError):  # a link that leads in a circle, before Python 3.13
        return None
    return place if place.is_relative_to(root) else None


def relative_href(report_directory: Path, path: Path) -> str:
    """The path as a URL relative to the report, with what Markdown and URLs treat specially encoded."""
    return quote(path.relative_to(report_directory).as_posix(), safe="/=,", errors="surrogatepass")

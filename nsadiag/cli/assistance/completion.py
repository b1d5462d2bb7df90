"""Values that a shell completes: formats, classes, faults, probes, tables, runs. What each needs is imported when Tab is pressed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

FORMATS = (
    "terminal",
    "md",
    "html",
    "json",
    "junit",
    "github",
    "sarif",
    "issue",
    "perfetto",
    "speedscope",
)


def formats(incomplete: str) -> list[str]:
    """Formats of reports."""
    return _beginning(FORMATS, incomplete)


def classes(incomplete: str) -> list[str]:
    """Classes and mechanisms."""
    from nsadiag.analysis.rules import catalogue

    known = [*catalogue.classes(), *(entry.name for entry in catalogue.entries())]
    return _beginning(dict.fromkeys(known), incomplete)


def faults(incomplete: str) -> list[str]:
    """Scripts that `demo` can run."""
    from nsadiag.commands.faults import scripts

    return _beginning(sorted(path.stem for path in scripts()), incomplete)


def probes(incomplete: str) -> list[str]:
    """One more name in a list with commas."""
    from nsadiag.evidence.probes import PROBE_NAMES

    before, comma, last = incomplete.rpartition(",")
    known = PROBE_NAMES if comma else ("light", "full", "none", *PROBE_NAMES)
    return [f"{before}{comma}{name}" for name in _beginning(known, last)]


def runs(incomplete: str) -> list[str]:
    """The runs under artifacts/, newest first, and what lies on the disk."""
    from nsadiag.commands.runs import FOLDER
    from nsadiag.reports import history

    own = [str(run.directory) for run in history.runs(FOLDER)] if FOLDER.is_dir() else []
    folder, slash, _ = incomplete.rpartition("/")
    inside = Path(f"{folder}{slash}" or ".")
    there = sorted(inside.iterdir()) if inside.is_dir() else []
    paths = [f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in there]
    return _beginning(dict.fromkeys([*own, *paths]), incomplete)


def runs_or_tables(incomplete: str) -> list[str]:
    """Arguments of `facts`."""
    from nsadiag.analysis.tables import TABLES

    return [*_beginning(TABLES, incomplete), *runs(incomplete)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

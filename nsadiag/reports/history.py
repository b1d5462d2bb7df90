"""Runs in a folder, and what they know of each other: how often a failure came, since when, at which commit, and when it was well last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nsadiag.evidence.layout import read_json
from nsadiag.reports import values

NEWEST = 500  # runs of a folder that a report looks back to
SHORT = 10  # letters of a commit
# The name that nsadiag gives a directory itself; one that a person named is never removed.
OWN_NAME = re.compile(r"\d{8}-\d{6}-.")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One line of the list."""

    directory: Path
    kind: str
    name: str
    started_at: str
    ended: bool
    outcome: str | None  # None: no verdict yet
    cls: str | None
    guilty_ranks: tuple[int, ...] = ()
    signature: str | None = None
    commit: str | None = None
    changed: bool | None = None  # tracked files, since that commit

    @property
    def at(self) -> str:
        """`1a2b3c4d5e`, with `, changed` where files were; empty where it is not known."""
        return commit_text(self.commit, changed=self.changed)

    @property
    def failed(self) -> bool:
        """Whether its verdict is anything but healthy; a run without one is none of these."""
        return self.outcome not in (None, "healthy")

    @property
    def is_own(self) -> bool:
        """Whether nsadiag chose the directory's name."""
        return bool(OWN_NAME.match(self.directory.name))

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        return {**body, "directory": str(self.directory), "class": body.pop("cls")}


def runs(folder: Path, *, only: Sequence[str] | None = None) -> list[Run]:
    """The runs directly under a folder, newest first; links are passed over. `only`: names to look at."""
    paths = folder.iterdir() if only is None else (folder / name for name in only)
    found = (_run(path) for path in paths if path.is_dir() and not path.is_symlink())
    return sorted((run for run in found if run), key=lambda run: run.started_at, reverse=True)


def _run(path: Path) -> Run | None:
    document = read_json(path / "run.json", {})
    if not document.get("kind"):
        return None
    verdict, code = read_json(path / "verdict.json", {}), values.mapping(document.get("code"))
    return Run(
        directory=path,
        kind=str(document["kind"]),
        name=str(document.get("name") or path.name),
        started_at=str(document.get("started_at") or ""),
        ended=bool(document.get("ended_at")),
        outcome=verdict.get("outcome"),
        cls=verdict.get("class"),
        guilty_ranks=tuple(verdict.get("guilty_ranks") or ()),
        signature=verdict.get("signature"),
        commit=values.text(code.get("commit")),
        changed=code.get("changed") if isinstance(code.get("changed"), bool) else None,
    )


def commit_text(commit: str | None, *, changed: bool | None) -> str:
    """A commit for a person."""
    return f"{commit[:SHORT]}{', changed' if changed else ''}" if commit else ""


@dataclass(frozen=True, kw_only=True)
class Again:
    """A failure that came before."""

    times: int  # this one included
    first: Run
    healthy: Run | None = field(default=None)  # the last of that name before the first

    def __str__(self) -> str:
        """`4th time since 2026-11-20, first at commit 1a2b3c4d5e, last healthy at commit 5e6f7a8b9c`."""
        first = f", first at commit {self.first.at}" if self.first.at else ""
        healthy = f", last healthy at commit {self.healthy.at}" if self.healthy and self.healthy.at else ""
        return f"{ordinal(self.times)} time since {self.first.started_at[:10]}{first}{healthy}"


def again(found: Sequence[Run]) -> dict[Path, Again]:
    """By directory, of each run whose failure came before. `found` has the newest first."""
    seen: dict[str, Again] = {}
    well: dict[str, Run] = {}  # by name, the last
    counted = {}
    for run in reversed(found):
        if run.outcome == "healthy":
            well[run.name] = run
        if not (run.failed and run.signature):
            continue
        before = seen.get(run.signature)
        first, healthy = (before.first, before.healthy) if before else (run, well.get(run.name))
        seen[run.signature] = Again(times=before.times + 1 if before else 1, first=first, healthy=healthy)
        if before:
            counted[run.directory] = seen[run.signature]
    return counted


def told_of(directory: Path) -> str:
    """The failure of a run that nsadiag named itself, as the runs beside it know it; empty where it is the first."""
    try:
        path = directory.resolve()
        if not OWN_NAME.match(path.name):
            return ""
        # Their names begin with their times.
        names = sorted(name.name for name in path.parent.iterdir() if OWN_NAME.match(name.name))
    except (OSError, ValueError):  # a name of the sender's, of a matrix from elsewhere
        return ""
    before = [name for name in names if name <= path.name][-NEWEST:]
    found = again(runs(path.parent, only=before)).get(path)
    return str(found) if found else ""


def ordinal(number: int) -> str:
    """`2nd`, `3rd`, `11th`."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"

"""`nsadiag ls`, `nsadiag clean` and the newest run: the directories under artifacts/."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from nsadiag.errors import UsageError
from nsadiag.evidence.layout import make_private_dir, replace_private
from nsadiag.evidence.ownership import check_not_planted
from nsadiag.reports.history import Run, again, runs

FOLDER = Path("artifacts")
LATEST = "latest"


def existing(folder: Path) -> Path:
    """The folder. Raises UsageError where there is none."""
    if not folder.is_dir():
        raise UsageError(
            f"there is no directory {folder}", "`nsadiag run` makes artifacts/ where it is typed"
        )
    if folder == FOLDER:  # that nobody has named
        try:
            check_not_planted(folder)
        except OSError as error:
            raise UsageError(
                f"{folder}: {error.strerror}", "name the directory, if it is to be read"
            ) from None
    return folder


def armed_folder() -> Path:
    """The folder of bundles of stalls in armed environments, unless `nsadiag arm --out` says otherwise."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "nsadiag" / "artifacts"


def armed(folder: Path) -> list[Run]:
    """The bundles of this user, which belong beside the runs in a folder that nobody named."""
    place = armed_folder()
    return runs(place) if folder == FOLDER and place.is_dir() else []


def latest(folder: Path = FOLDER) -> Path:
    """The newest run under a folder. Raises UsageError where there is none."""
    if folder == FOLDER and not folder.is_dir() and armed(folder):
        return armed(folder)[0].directory
    link = existing(folder) / LATEST
    if link.is_symlink() and (link / "run.json").exists():
        return link.resolve()
    for run in runs(folder):
        return run.directory
    raise UsageError(f"there is no run in {folder}", "give a run directory, or make a run: `nsadiag demo`")


def enter(path: Path) -> None:
    """Prepares artifacts/ for a run of its own: unknown to git, and linked to as the latest."""
    folder = make_private_dir(path.parent)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        replace_private(ignore, b"# Written by nsadiag: runs are no source.\n*\n")
    link = folder / LATEST
    if link.exists() and not link.is_symlink():
        return  # somebody's own
    # A link that is replaced in one step is never missing. Where links are refused, the newest run is found by its time.
    with contextlib.suppress(OSError):
        beside = folder / f".{LATEST}-{os.getpid()}"
        beside.symlink_to(path.name)
        beside.replace(link)


def listed(folder: Path) -> list[Run]:
    """Those of the folder and, where nobody named it, the bundles, newest first. Raises UsageError where there are neither."""
    bundles = armed(folder)
    found = runs(existing(folder)) if folder.is_dir() or not bundles else []
    return sorted([*found, *bundles], key=lambda run: run.started_at, reverse=True)


def removable(
    folder: Path, keep: int = 0, *, failed: bool = False, older_s: float | None = None
) -> list[Run]:
    """The ended runs that nsadiag named beyond the newest `keep`; with `failed` those alone that failed, with `older_s` those older than so many seconds."""
    own = [run for run in runs(existing(folder)) if run.is_own and run.ended and (run.failed or not failed)]
    return [run for run in own[keep:] if older_s is None or (_age_s(run) or 0.0) > older_s]


def remove(found: Iterable[Run]) -> None:
    for run in found:
        shutil.rmtree(run.directory)


def _age_s(run: Run) -> float | None:
    """Seconds since its start; None where it does not say."""
    try:
        started = datetime.fromisoformat(run.started_at)
    except ValueError:
        return None
    return (datetime.now(timezone.utc) - started.astimezone(timezone.utc)).total_seconds()


def lines(found: Sequence[Run], known: Sequence[Run] | None = None) -> list[str]:
    """A line a run: when, outcome, class, ranks, the times that it failed like this, directory. `known`: all that may have failed before."""
    counted = again(found if known is None else known)
    rows = [
        (
            _when(run),
            run.outcome or _without_verdict(run),
            _what(run),
            str(counted.get(run.directory, "")),
            str(run.directory),
        )
        for run in found
    ]
    last = len(rows[0]) - 1 if rows else 0
    widths = [max(len(row[column]) for row in rows) for column in range(last)]
    # A column that no run fills takes no room.
    shown = [column for column in range(last) if widths[column]]
    return ["  ".join((*(f"{row[n]:{widths[n]}}" for n in shown), row[last])) for row in rows]


def _when(run: Run) -> str:
    return run.started_at[:16].replace("T", " ")


def _without_verdict(run: Run) -> str:
    return run.kind if run.ended else "not ended"


def _what(run: Run) -> str:
    from nsadiag.evidence.spans import spans

    guilty = run.guilty_ranks
    ranks = f", rank{'s' * (len(guilty) > 1)} {spans(guilty)}" if guilty else ""
    # A class that only repeats the outcome says nothing more.
    return f"{'-' if run.cls in (None, run.outcome) else run.cls}{ranks}"


def as_json(found: Iterable[Run]) -> str:
    return json.dumps([run.to_json() for run in found], indent=1)

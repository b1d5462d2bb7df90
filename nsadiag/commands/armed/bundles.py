"""Bundles: what a stall left, copied out of memory into a run directory of bounded size; the oldest give way."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from nsadiag.commands import runs
from nsadiag.evidence.arming.home import Home
from nsadiag.evidence.documents.files import read_evidence
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, write_json, write_private
from nsadiag.evidence.ring.excerpt import excerpt
from nsadiag.reports import history

MIB = 2**20
MOST_BYTES = 20 * MIB  # of one bundle
RINGS_SHARE = 0.5  # of it, for the events of all ranks
FEWEST_EVENTS = 256
EVENT_BYTES = 64
# Left behind: sockets, and what grows with time alone.
NOT_COPIED = ("s", "seen.json", "stall.json")


def folder_of(out: str, home: Home) -> Path:
    """The folder of bundles: as was said, or the user's own folder, or where no home can be written to, beside the recordings.

    Raises OSError where not even that can be written.
    """
    for place in [Path(out)] if out else [runs.armed_folder()]:
        with contextlib.suppress(OSError):
            make_private_dir(place)
            if os.access(place, os.W_OK | os.X_OK) and _has_room(place):
                return place
    return make_private_dir(home.path / runs.FOLDER)


def _has_room(place: Path) -> bool:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize > 2 * MOST_BYTES


def write(live: RunDir, folder: Path, name: str, quota_mib: int) -> RunDir:
    """A bundle of what lies in the folder of a job; older ones go where all of them exceed the quota. Raises OSError."""
    rotate(folder, quota_mib * MIB - MOST_BYTES)
    stamp, safe = datetime.now().strftime("%Y%m%d-%H%M%S"), re.sub(r"[^\w.-]+", "-", name)[:40]
    path = folder / f"{stamp}-{safe}"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"{stamp}-{safe}-{number}"
    bundle = RunDir(path=make_private_dir(path))
    left_out = _copy(live.path, bundle.path)
    if left_out:
        about = read_json(bundle.run, {})
        write_json(bundle.run, {**about, "left_out": left_out})
    with contextlib.suppress(OSError):
        runs.enter(path)
    return bundle


def _copy(source: Path, target: Path) -> list[str]:
    """Copies as much as fits, the most telling first; returns the rest."""
    left, left_out = MOST_BYTES, []
    files = sorted(_files(source), key=lambda path: _order(path.relative_to(source)))
    rings = [path for path in files if path.name == "blackbox.bin"]
    events = max(int(MOST_BYTES * RINGS_SHARE / EVENT_BYTES / max(len(rings), 1)), FEWEST_EVENTS)
    for path in files:
        place = path.relative_to(source)
        try:
            content = read_evidence(path)
            if path in rings:
                content = excerpt(content, events)
            if len(content) > left:
                left_out.append(str(place))
                continue
            make_private_dir((target / place).parent)
            write_private(target / place, content)
            left -= len(content)
        except (OSError, ValueError) as error:
            left_out.append(f"{place}: {error}")
    return left_out


def _files(source: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(source):
        if Path(root) == source:
            folders[:] = [name for name in folders if name not in NOT_COPIED]
        for name in names:
            path = Path(root) / name
            if (
                not name.startswith(".")
                and name not in NOT_COPIED
                and path.is_file()
                and not path.is_symlink()
            ):
                yield path


def _order(place: Path) -> tuple[int, int, str]:
    """The verdict, then what each rank is and did, then the newest captures."""
    if len(place.parts) == 1:
        return 0, 0, place.name
    if "captures" in place.parts:
        number = place.parts[place.parts.index("captures") + 1]
        return 3, -int(number) if number.isdigit() else 0, str(place)
    return (1, 0, str(place)) if place.parts[0] in ("ranks", "sources") else (2, 0, str(place))


def rotate(folder: Path, most_bytes: int) -> None:
    """Removes the oldest bundles until the rest takes no more than that; other runs stay."""
    sizes = [
        (run.directory, _size(run.directory)) for run in history.runs(folder) if is_bundle(run.directory)
    ]
    total = sum(size for _, size in sizes)
    while sizes and total > max(most_bytes, 0):
        oldest, size = sizes.pop()
        shutil.rmtree(oldest, ignore_errors=True)
        total -= size


def is_bundle(directory: Path) -> bool:
    """Whether it is the record of a stall, and no run that somebody started by `nsadiag run`."""
    return bool(read_json(directory / "run.json", {}).get("armed"))


def _size(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir())


def mark(bundle: Path, more: dict[str, Any]) -> None:
    """Adds to a bundle's run.json; nothing where it is gone."""
    run = RunDir(path=bundle)
    about = read_json(run.run, {})
    if about:
        with contextlib.suppress(OSError):
            write_json(run.run, {**about, **more})

"""The part of a job's folder that its trials are given: all of it, or what the job is known to read and what is small beside that.

A script may lie in a home folder or at the root of a monorepo, beside things that are none of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nsadiag.errors import MachineError

LEFT_OUT = (
    ".git",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    "artifacts",
    ".mypy_cache",
    ".pytest_cache",
)
MOST_BYTES = 512 * 2**20
MOST_FILES = 20_000
BESIDE = 8  # of a folder that is too large, an eighth of that may be things that nothing names
PARTS = re.compile(r"[/'\"]")


@dataclass(frozen=True)
class Size:
    """Files and bytes, counted no further than what is too large in any case."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.bytes + other.bytes)

    def is_above(self, share: int = 1) -> bool:
        return self.files > MOST_FILES // share or self.bytes > MOST_BYTES // share


@dataclass(frozen=True, kw_only=True)
class Selection:
    """`whole`: files and folders that are copied with all that is in them; `missing`: those that were too large."""

    folder: Path
    whole: frozenset[Path]
    missing: tuple[Path, ...] = ()

    @functools.cached_property
    def _above(self) -> frozenset[Path]:
        return frozenset(parent for path in self.whole for parent in path.parents)

    def ignored(self, folder: str, names: list[str]) -> set[str]:
        """For `shutil.copytree`: names in a folder that are not copied."""
        return {name for name in names if not self._has(Path(folder, name))}

    def _has(self, path: Path) -> bool:
        is_kept = path in self._above or not self.whole.isdisjoint((path, *path.parents))
        return is_kept and is_copied(path)

    def read_by(self, message: str) -> Path | None:
        """The missing path that the message of a job that found no file names."""
        if "FileNotFoundError" not in message:
            return None
        return next((path for path in self.missing if path.name in PARTS.split(message)), None)


def selected(folder: Path, needed: Iterable[Path]) -> Selection:
    """`needed`: paths that the job's sources have, or its command. Raises MachineError where they alone are too large."""
    if not measured(folder).is_above():
        return Selection(folder=folder, whole=frozenset((folder,)))
    kept = {path for path in needed if path.is_relative_to(folder) and path.exists()}
    whole, beside = set[Path](), list[tuple[Size, Path]]()
    total = _gather(folder, kept, whole, beside)
    if total.is_above():
        raise MachineError(
            f"what the job reads in {folder} is too large to be copied for each trial "
            f"({total.files:,} files, {total.bytes >> 20:,} MiB)",
            "start the job in the folder that holds its sources, and its data elsewhere",
        )
    extra, missing = Size(), list[Path]()
    for size, path in sorted(beside, key=lambda each: (each[0].bytes, each[0].files, each[1])):
        if (extra + size).is_above(BESIDE) or (total + extra + size).is_above():
            missing.append(path)
        else:
            extra += size
            whole.add(path)
    return Selection(folder=folder, whole=frozenset(whole), missing=tuple(reversed(missing)))


def _gather(folder: Path, needed: set[Path], whole: set[Path], beside: list[tuple[Size, Path]]) -> Size:
    """Adds what is needed below a folder, and to `beside` what lies next to it; returns the size of what is needed."""
    total = Size()
    for entry in sorted(folder.iterdir()):
        if not is_copied(entry):
            continue
        is_named = entry in needed
        if not is_named and not any(entry in path.parents for path in needed):
            if not entry.name.startswith("."):  # a home folder's settings and keys are nobody's data
                beside.append((measured(entry, BESIDE), entry))
            continue
        size = measured(entry)
        if size.is_above() and not is_named:
            total += _gather(entry, needed, whole, beside)
        else:
            total += size
            whole.add(entry)
    return total


def measured(path: Path, share: int = 1) -> Size:
    """The size of a file, or of a folder without what no trial needs; counted until it is above its share."""
    size = Size()
    for file in _files(path):
        with contextlib.suppress(OSError):
            size += Size(1, file.lstat().st_size)
        if size.is_above(share):
            break
    return size


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for here, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(here, name) for name in names)


def is_copied(path: Path) -> bool:
    """Neither what no job needs of a copy, nor pipes, sockets and devices, nor what may not be read."""
    if path.name in LEFT_OUT:
        return False
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        return os.access(path, os.R_OK | os.X_OK)
    return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and os.access(path, os.R_OK))

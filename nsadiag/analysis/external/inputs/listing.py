"""All files behind the paths that a person names, with a name for each by which reports can cite it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.analysis.external.inputs import staging
from nsadiag.analysis.external.inputs.files import InputFile, Refusals
from nsadiag.analysis.external.inputs.packing import CannotUnpack
from nsadiag.analysis.external.inputs.staging import Staging
from nsadiag.analysis.external.inputs.unpack import Budget, is_archive, unpack
from nsadiag.errors import MachineError, UsageError

STDIN = Path("-")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# In a folder only what is called an archive is unpacked: checkpoints are zip files too.
ARCHIVE_NAME = re.compile(r"\.(zip|tar|tgz|tbz2?|txz|tzst|7z|rar|tar\.(gz|bz2|xz|zst))$", re.IGNORECASE)
RUN = "a directory that nsadiag wrote: it is judged alone"
DEEPEST = 12  # folders below each other
DEEPEST_ARCHIVE = 3  # archives in archives


@dataclass(kw_only=True)
class Inputs:
    """The files to read, and the reasons for which others are not."""

    root: Path  # of the names
    files: list[InputFile] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)
    staging: Staging = field(default_factory=Staging)
    budget: Budget = field(default_factory=Budget)


def inputs_of(paths: Sequence[Path]) -> Inputs:
    """Raises UsageError for a URL, and for a path where nothing is; MachineError where there is no room to unpack."""
    check_paths(paths)
    found = Inputs(root=_common(paths))
    try:
        for path in dict.fromkeys(paths):
            _add(path, found)
    except OSError as error:
        raise MachineError(
            f"no room to unpack: {error.strerror}", "set TMPDIR to a directory with more space"
        ) from None
    return found


def check_paths(paths: Sequence[Path]) -> None:
    """Raises UsageError for a URL, and for a path where nothing is."""
    for path in paths:
        if path == STDIN or path.exists():
            continue
        if url := URL.match(str(path)):
            whole = f"{url[0]}/{str(path)[url.end() :]}"
            raise UsageError(f"{whole} is a URL: nsadiag fetches nothing", "download it, and give the file")
        raise UsageError(
            f"{path} does not exist",
            "give a directory that nsadiag wrote, or dumps, stacks or logs of other tools",
        )


def _common(paths: Sequence[Path]) -> Path:
    """The folder to which all names are relative: of one folder that itself."""
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0]
    named = [path for path in paths if path != STDIN]
    if not named:
        return Path()
    if len({path.parent for path in named}) == 1:
        return named[0].parent
    return Path(os.path.commonpath([os.path.abspath(path.parent) for path in named]))  # noqa: PTH100 - links stay


def _name(path: Path, root: Path) -> str:
    for each in (path, Path(os.path.abspath(path))):  # noqa: PTH100 - links stay
        with contextlib.suppress(ValueError):
            return each.relative_to(root).as_posix()
    return path.as_posix()


def _add(path: Path, found: Inputs) -> None:
    if path == STDIN:
        place = staging.stdin()
        _add_file(InputFile("stdin", str(place), str(place.parent), asked=True), found, 0)
    elif path.is_dir():
        name = _name(path, found.root)
        _add_folder(path, "" if name == "." else f"{name}/", found, 0)
    else:
        # A link that a person names leads where it leads.
        target = path.resolve()
        _add_file(InputFile(_name(path, found.root), str(target), str(target.parent), asked=True), found, 0)


def _add_folder(folder: Path, prefix: str, found: Inputs, depth: int) -> None:
    root = str(folder)
    cut = len(root.rstrip("/")) + 1 if root != "." else 0
    for path in _files(root, 0, lambda run: found.refusals.add(prefix + run[cut:], RUN)):
        _add_file(InputFile(prefix + path[cut:], path, root), found, depth)


def _files(folder: str, depth: int, is_run: Callable[[str], None]) -> Iterator[str]:
    """In no order; links to elsewhere are not followed, and what nsadiag wrote itself is told of."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if depth and any(entry.name == "run.json" for entry in entries):
        is_run(folder)
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth < DEEPEST and not entry.name.startswith("."):
                yield from _files(_below(folder, entry), depth + 1, is_run)
        elif not entry.name.startswith(".") and _is_file(entry):
            yield _below(folder, entry)


def _below(folder: str, entry: os.DirEntry[str]) -> str:
    return entry.name if folder == "." else entry.path


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads in a circle
        return False


def _add_file(file: InputFile, found: Inputs, depth: int) -> None:
    """The file itself, or what is in it."""
    if not file.asked and not ARCHIVE_NAME.search(file.name):
        found.files.append(file)
        return
    try:
        if not is_archive(file.on_disk, Path(file.root)):
            found.files.append(file)
            return
        if depth >= DEEPEST_ARCHIVE:
            raise CannotUnpack(f"not unpacked: it lies {DEEPEST_ARCHIVE} archives deep")
        folder = found.staging.new()
        unpacked = unpack(file.on_disk, Path(file.root), folder, found.budget)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        found.refusals.add(file.name, error.strerror or str(error))
        return
    for name, why in unpacked.refused:
        found.refusals.add(f"{file.name}/{name}" if name else file.name, why)
    _add_folder(folder, f"{file.name}/", found, depth + 1)

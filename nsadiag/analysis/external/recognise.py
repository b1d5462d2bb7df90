"""Kinds of files in a directory, by name and first bytes; of a series of files a few are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nsadiag.analysis.ingest.dumps.pool import DumpFile
from nsadiag.evidence.documents.files import read_begin

Kind = Literal["dumps", "py_spy_json", "stacks", "errors", "logs", "nothing"]
SNIFFED_BYTES = 16 * 1024
# A family of more files than this is judged by its first, middle and last: opening 100,000 files takes seconds.
LARGE_FAMILY = 64
DEEPEST = 12
RANK_IN_NAME = (
    re.compile(r"rank[_.=-]?(\d+)", re.IGNORECASE),
    re.compile(r"(\d+)(?:\.[A-Za-z]\w*)*$"),
    re.compile(r"(\d+)\D*$"),
)
# torchrun --log-dir DIR: DIR/<run id>/attempt_0/<local rank>/stderr.log
TORCHRUN_LOG = re.compile(r"attempt_(?P<attempt>\d+)/(?P<rank>\d+)/(stdout\.log|stderr\.log|error\.json)$")

# Any protocol; the oldest begin with a mark, or with the name of something to call.
PICKLE = re.compile(rb"\x80[\x02-\x05]|\(?[dl]p\d+\n|\}q|\]q|\(?c[\w.]+\n[\w.]+\n|\(?i[\w.]+\n[\w.]+\n")
JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[\[{"])')
PY_SPY = re.compile(rb"^Process \d+: .*\nPython v?\d", re.MULTILINE)
FAULTHANDLER = re.compile(
    rb"^(?:Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):", re.MULTILINE
)
ENTRY = re.compile(rb'"(?:collective_seq_id|profiling_name|pg_config|seq_id)"')
THREADS = re.compile(rb'"(?:thread_name|thread_id|owns_gil|os_thread_id)"')
ERROR = re.compile(rb'"(?:py_callstack|extraInfo)"')


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Files by what they are."""

    root: Path
    dumps: list[DumpFile] = field(default_factory=list)
    py_spy_json: list[Path] = field(default_factory=list)
    stacks: list[Path] = field(default_factory=list)
    errors: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    nothing: list[Path] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.dumps or self.py_spy_json or self.stacks or self.errors or self.logs)


def gather(path: Path) -> Gathered:
    """All files below a directory, or the one file."""
    root = path if path.is_dir() else path.parent
    found = Gathered(root=root)
    families: dict[tuple[str, str], list[str]] = {}
    for name in _files(str(path), 0) if path.is_dir() else [str(path)]:
        folder, base = os.path.split(name)
        families.setdefault((re.sub(r"\d+", "#", folder), re.sub(r"\d+", "#", base)), []).append(name)
    for names in families.values():
        for name, kind in _kinds(sorted(names), root):
            _put(found, Path(name), kind)
    return found


def _files(folder: str, depth: int) -> Iterator[str]:
    """In no order; links to elsewhere are not followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth < DEEPEST and not entry.name.startswith("."):
                yield from _files(entry.path, depth + 1)
        elif not entry.name.startswith(".") and _is_file(entry):
            yield entry.path


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads in a circle
        return False


def _kinds(names: list[str], root: Path) -> Iterator[tuple[str, Kind]]:
    if len(names) > LARGE_FAMILY:
        seen = {_kind(name, root) for name in (names[0], names[len(names) // 2], names[-1])}
        if seen == {"dumps"}:
            yield from ((name, "dumps") for name in names)
            return
    yield from ((name, _kind(name, root)) for name in names)


def _kind(name: str, root: Path) -> Kind:
    try:
        begin = read_begin(Path(name), SNIFFED_BYTES, root)
    except OSError:
        return "nothing"
    if PICKLE.match(begin):
        return "dumps"
    if JSON.match(begin):
        return _kind_of_json(name, begin, root)
    if PY_SPY.search(begin):
        return "stacks"
    if not begin.strip() or b"\0" in begin:
        return "nothing"
    # A log may hold stacks as well: it is read as a log, and for them.
    return "stacks" if FAULTHANDLER.match(begin.lstrip()) else "logs"


def _kind_of_json(name: str, begin: bytes, root: Path) -> Kind:
    for _ in range(2):
        if ENTRY.search(begin):
            return "dumps"
        if THREADS.search(begin) and b'"frames"' in begin:
            return "py_spy_json"
        if ERROR.search(begin):
            return "errors"
        # A configuration of 10,000 ranks, or frames of a deep stack, may come first.
        begin = read_begin(Path(name), 2**20, root)
    return "logs"


def _put(found: Gathered, path: Path, kind: Kind) -> None:
    file = DumpFile(path=str(path), rank=rank_of(path, found.root)) if kind == "dumps" else path
    getattr(found, kind).append(file)


def rank_of(path: Path, root: Path) -> int:
    """As name or folder tells; -1 where neither does."""
    torchrun = TORCHRUN_LOG.search(path.as_posix())
    if torchrun:
        return int(torchrun["rank"])
    named = RANK_IN_NAME[0].findall(path.name)
    if named:
        return int(named[-1])
    for pattern in RANK_IN_NAME[1:]:
        match = pattern.search(path.name)
        if match:
            return int(match[1])
    for folder in path.relative_to(root).parent.parts[::-1]:
        match = RANK_IN_NAME[0].search(folder) or re.fullmatch(r"(\d+)", folder)
        if match:
            return int(match[1])
    return -1

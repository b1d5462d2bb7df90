"""Kinds of files, by name and first bytes; of a series of files a few are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nsadiag.analysis.external.inputs.files import InputFile, Refusals
from nsadiag.analysis.external.inputs.listing import inputs_of
from nsadiag.analysis.external.inputs.packing import Content, content_of, is_compressed
from nsadiag.analysis.external.inputs.staging import CHUNK_BYTES, Staging
from nsadiag.analysis.external.inputs.text import encoding_of, is_text

Kind = Literal["dumps", "py_spy_json", "stacks", "errors", "logs"]
SNIFFED_BYTES = 16 * 1024
# A family of more files than this is judged by its first, middle and last: opening 100,000 files takes seconds.
LARGE_FAMILY = 64
COMPRESSED_NAME = re.compile(r"\.(gz|bz2|xz|zst)$", re.IGNORECASE)
KINDS = ("dumps", "py_spy_json", "stacks", "errors", "logs")
MOST_ZEROS = 2**30
MOST_EXPANDED = 256 * 2**20  # of a compressed dump, or of stacks
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
STACKS = re.compile(r"Process \d+: |Current thread 0x|Thread 0x|Timeout \(|Fatal Python error: ")
ENTRY = re.compile(rb'"(?:collective_seq_id|profiling_name|pg_config|seq_id)"')
THREADS = re.compile(rb'"(?:thread_name|thread_id|owns_gil|os_thread_id)"')
ERROR = re.compile(rb'"(?:py_callstack|extraInfo)"')


@dataclass(kw_only=True)
class Gathered:
    """Files by what they are."""

    root: Path  # to which their names are relative
    dumps: list[InputFile] = field(default_factory=list)
    py_spy_json: list[InputFile] = field(default_factory=list)
    stacks: list[InputFile] = field(default_factory=list)
    errors: list[InputFile] = field(default_factory=list)
    logs: list[InputFile] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)
    cut: set[str] = field(default_factory=set)  # names of logs that end early

    @property
    def all(self) -> Iterator[InputFile]:
        for kind in (self.dumps, self.py_spy_json, self.stacks, self.errors, self.logs):
            yield from kind


def gather(paths: Sequence[Path]) -> Gathered:
    """All evidence behind the paths. Raises UsageError and MachineError as `inputs_of` does."""
    inputs = inputs_of(paths)
    found = Gathered(root=inputs.root, refusals=inputs.refusals)
    families: dict[tuple[str, str], list[InputFile]] = {}
    for file in inputs.files:
        folder, base = os.path.split(file.name)
        families.setdefault((re.sub(r"\d+", "#", folder), re.sub(r"\d+", "#", base)), []).append(file)
    for family in families.values():
        for file, kind in _kinds(sorted(family), found.refusals):
            if kind == "stacks" and _begins_otherwise(file):
                found.logs.append(file)
            packed = kind != "logs" and (file.asked or COMPRESSED_NAME.search(file.name))
            getattr(found, kind).append(_whole(file, inputs.staging) if packed else file)
    return found


def _kinds(family: list[InputFile], refusals: Refusals) -> Iterator[tuple[InputFile, Kind]]:
    """Those that are evidence; the reasons for which others are none go to `refusals`."""
    if len(family) > LARGE_FAMILY:
        seen = {_kind(file) for file in (family[0], family[len(family) // 2], family[-1])}
        if seen == {"dumps"}:
            yield from ((file, "dumps") for file in family)
            return
    for file in family:
        kind = _kind(file)
        if kind in KINDS:
            yield file, kind  # type: ignore[misc]
        else:
            refusals.add(file.name, kind)


def _kind(file: InputFile) -> str:
    """The kind of a file, or the reason for which it cannot be read."""
    try:
        content = content_of(file.on_disk, Path(file.root))
    except OSError as error:
        return error.strerror or str(error)
    with closing(content):
        begin = _begin(content, SNIFFED_BYTES)
        if not begin:
            return content.why or "empty"
        # A log that was rotated or truncated while it was written begins with a hole.
        while begin and not begin.strip(b"\0") and content.done < MOST_ZEROS:
            begin = _begin(content, CHUNK_BYTES).lstrip(b"\0")
        if PICKLE.match(begin):
            return "dumps"
        if JSON.match(begin):
            return _kind_of_json(content, begin)
    if not begin.strip(b"\0 \t\r\n\x0b\x0c"):
        return "nothing but blanks and zero bytes"
    if not is_text(begin):
        return "binary, and of no kind that nsadiag knows"
    text = begin.decode(encoding_of(begin), "replace").removeprefix("\ufeff").encode().replace(b"\r\n", b"\n")
    if PY_SPY.search(text):
        return "stacks"
    # A log may hold stacks as well: it is read as a log, and for them.
    return "stacks" if FAULTHANDLER.match(text.lstrip()) else "logs"


def _begins_otherwise(file: InputFile) -> bool:
    """Whether stacks stand in the middle of something else, which may be a log."""
    with closing(content_of(file.on_disk, Path(file.root))) as content:
        begin = _begin(content, SNIFFED_BYTES)
    text = begin.decode(encoding_of(begin), "replace").removeprefix("\ufeff").lstrip()
    return STACKS.match(text) is None


def _begin(content: Content, most: int) -> bytes:
    found = b""
    while len(found) < most and (chunk := content.read(most - len(found))):
        found += chunk
    return found


def _kind_of_json(content: Content, begin: bytes) -> Kind:
    for _ in range(2):
        if ENTRY.search(begin):
            return "dumps"
        if THREADS.search(begin) and b'"frames"' in begin:
            return "py_spy_json"
        if ERROR.search(begin):
            return "errors"
        # A configuration of 10,000 ranks, or frames of a deep stack, may come first.
        begin += _begin(content, 2**20)
    return "logs"


def _whole(file: InputFile, staging: Staging) -> InputFile:
    """The file, unpacked where it is compressed: who reads dumps reads files. Raises OSError where there is no room."""
    if not is_compressed(file.on_disk, Path(file.root)):
        return file
    folder = staging.new()
    with closing(content_of(file.on_disk, Path(file.root))) as content, (folder / "file").open("xb") as place:
        while chunk := content.read(CHUNK_BYTES):
            if place.tell() > MOST_EXPANDED:
                break
            place.write(chunk)
    packed = file.on_disk.stat()
    os.utime(folder / "file", (packed.st_mtime, packed.st_mtime))  # the age of a dump
    return file._replace(path=str(folder / "file"), root=str(folder))


def rank_of(file: InputFile) -> int:
    """As name or folder tells; -1 where neither does."""
    torchrun = TORCHRUN_LOG.search(file.name) or TORCHRUN_LOG.search(file.path)
    if torchrun:
        return int(torchrun["rank"])
    base = COMPRESSED_NAME.sub("", os.path.basename(file.name))  # noqa: PTH119 - a name, no path
    named = RANK_IN_NAME[0].findall(base)
    if named:
        return int(named[-1])
    for pattern in RANK_IN_NAME[1:]:
        match = pattern.search(base)
        if match:
            return int(match[1])
    for folder in Path(file.name).parent.parts[::-1]:
        match = RANK_IN_NAME[0].search(folder) or re.fullmatch(r"(\d+)", folder)
        if match:
            return int(match[1])
    return -1

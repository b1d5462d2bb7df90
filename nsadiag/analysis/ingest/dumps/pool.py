"""Reads dumps in separate processes with limited memory, in which a hostile file can do no harm."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar, cast

from nsadiag.analysis.ingest.dumps.columns import (
    OF_TWO,
    Categories,
    Group,
    GroupColumn,
    GroupNames,
    RankColumns,
    op_of,
    process_group_of,
)
from nsadiag.analysis.ingest.dumps.plain import document_of, is_whole, plain_columns, seq_of
from nsadiag.evidence.documents.files import open_evidence
from nsadiag.evidence.pickles import PickleRefused
from nsadiag.evidence.recorder import Dump, Entry, Frame

# What one process may take beyond what it has when it begins; a dump of 100 MB becomes about 1 GiB.
MEMORY_BYTES = 2 * 2**30
# Of that, what a file of its size may take: a small one that asks for much is no dump.
MEMORY_OF_ANY, MEMORY_A_BYTE = 80 * 2**20, 12
FILES_AT_A_TIME = 64
MAX_BYTES = 256 * 2**20  # of one dump
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class DumpFile:
    """A file that looks like the dump of one rank."""

    path: str
    rank: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A file that could not be read, and why."""

    file: DumpFile
    why: str


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The collectives to look at closely in one dump: by group, from a number on, and the last."""

    file: DumpFile
    groups: tuple[
        tuple[str, str, int | None], ...
    ]  # name, description as entries have them; first number, None for all


@contextmanager
def readers() -> Iterator[ProcessPoolExecutor]:
    """As many processes as there are CPUs for us. On Linux they are forked: to start anew costs half a second each."""
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(cpus, mp_context=context, initializer=_limited) as pool:
        yield pool


def _limited() -> None:
    """No more memory than reading needs, and no search for cycles, of which dumps have none."""
    gc.disable()
    _allow(MEMORY_BYTES, for_good=True)


def _allow(memory: int, *, for_good: bool = False) -> None:
    """So much more than there is now, up to what is allowed for good."""
    try:
        import resource

        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = now + memory if most == resource.RLIM_INFINITY else min(now + memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit if for_good else most))
    except (ImportError, OSError, ValueError):
        return


def read_all(pool: ProcessPoolExecutor, files: Sequence[DumpFile]) -> Iterator[RankColumns | Refused]:
    """The columns of every file, in the files' order."""
    parts = [files[i : i + FILES_AT_A_TIME] for i in range(0, len(files), FILES_AT_A_TIME)]
    return _flat(pool, _columns_of_files, parts)


def _flat(
    pool: ProcessPoolExecutor, function: Callable[[Any], list[Result]], parts: Iterable[Any]
) -> Iterator[Result]:
    for results in pool.map(function, parts):
        yield from results


class _Reader:
    """State that one process keeps from file to file."""

    def __init__(self) -> None:
        self.names, self.categories = GroupNames(), Categories()
        self._sent: dict[str, Group] = {}

    def columns(self, file: DumpFile) -> RankColumns:
        """Raises PickleRefused, OSError, and what a file of another shape may lead to."""
        document = document_of(_bytes(file))
        return plain_columns(file.rank, file.path, document, self.names, self.categories)

    def to_send(self, columns: RankColumns) -> RankColumns:
        """The members of a group of 10,000 ranks cross over once, not with each rank."""
        return replace(columns, groups=tuple(map(self._once, columns.groups)))

    def _once(self, column: GroupColumn) -> GroupColumn:
        group = column.group
        if group.key in self._sent:
            return replace(column, group=self._sent[group.key])
        self._sent[group.key] = replace(group, members=())
        return column


@functools.cache
def _reader() -> _Reader:
    return _Reader()


def _columns_of_files(files: Sequence[DumpFile]) -> list[RankColumns | Refused]:
    return [_guarded(lambda file: _reader().to_send(_reader().columns(file)), file) for file in files]


def _guarded(read: Callable[[DumpFile], Result], file: DumpFile) -> Result | Refused:
    """Answer a file that is no dump, too."""
    try:
        return read(file)
    except PickleRefused as error:
        return Refused(file=file, why=str(error))
    except MemoryError:
        return Refused(file=file, why="it asks for more memory than any dump needs")
    except OSError as error:
        return Refused(file=file, why=error.strerror or str(error))
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        return Refused(file=file, why=f"no flight-recorder dump ({type(error).__name__}: {error})"[:200])


def _bytes(file: DumpFile) -> bytes:
    with open_evidence(Path(file.path)) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > MAX_BYTES:
            raise PickleRefused(f"more than {MAX_BYTES >> 20} MiB")
        _allow(MEMORY_OF_ANY + MEMORY_A_BYTE * size)
        return opened.read()


MOST_OF_A_GROUP = 12  # entries to look at closely
MOST_TRANSFERS = 32


def read_closely(pool: ProcessPoolExecutor, wanted: Sequence[Wanted]) -> Iterator[Dump | Refused]:
    """The wanted entries of each dump, whole, with their number in the file as `index`."""
    return _flat(pool, _close_up_of_files, [[each] for each in wanted])


def _close_up_of_files(wanted: Sequence[Wanted]) -> list[Dump | Refused]:
    return [_guarded(functools.partial(_close_up, each), each.file) for each in wanted]


def _frames_of(entry: Entry) -> list[Frame]:
    """Those that are frames: a dump from elsewhere may hold anything."""
    frames: Any = entry.get("frames")
    whole = frames if isinstance(frames, list | tuple) else ()
    return [cast("Frame", each) for each in whole if isinstance(each, dict)]


def _close_up(wanted: Wanted, file: DumpFile) -> Dump:
    document = document_of(_bytes(file))
    entries: list[Entry] = [
        {**entry, "frames": _frames_of(entry), "index": i}
        for i, entry in enumerate(document["entries"])
        if isinstance(entry, dict)
    ]
    kept: list[Entry] = []
    for name, description, seq in wanted.groups:
        mine = [e for e in entries if _is_of(e, (name, description))]
        if seq is None:
            kept += mine
            continue
        at = next((i for i, e in enumerate(mine) if seq_of(e) >= seq), len(mine))
        kept += [*mine[max(at - 1, 0) : at + MOST_OF_A_GROUP], *mine[max(at + MOST_OF_A_GROUP, 1) :][-1:]]
    kept += [
        e for e in entries if e.get("is_p2p") and not e.get("retired") and e.get("state") != "completed"
    ][:MOST_TRANSFERS]
    unique = {entry["index"]: entry for entry in kept}
    config = document.get("pg_config")
    return {
        "version": document.get("version", ""),
        "pg_config": config if isinstance(config, dict) else {},
        "entries": [unique[i] for i in sorted(unique)],
    }


def _is_of(entry: Entry, process_group: tuple[str, str]) -> bool:
    if entry.get("is_p2p") or process_group_of(entry) != process_group:
        return False
    return is_whole(seq_of(entry)) and not OF_TWO.match(op_of(str(entry.get("profiling_name", ""))))

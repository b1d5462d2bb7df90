"""Flight-recorder dumps of all ranks, read side by side; files that are none become gaps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from nsadiag.analysis.external.inputs.files import InputFile, Refusals
from nsadiag.analysis.external.recognise import rank_of
from nsadiag.analysis.ingest.dumps.columns import RankColumns
from nsadiag.analysis.ingest.dumps.pool import DumpFile, Refused, read_all, readers
from nsadiag.analysis.scale.dumps.details import Details, details_of
from nsadiag.analysis.scale.dumps.dump_set import DumpSet, merged
from nsadiag.errors import MachineError


def read_dumps(found: Sequence[InputFile], refusals: Refusals) -> tuple[DumpSet, Details, list[str]]:
    """All of them, what is worth a closer look, and gaps; their files have the names by which reports cite them."""
    if not found:
        return DumpSet(ranks={}), Details(documents={}), []
    try:
        return _from_files(found, refusals)
    except BrokenProcessPool:
        raise MachineError(
            "a process that read dumps came to a sudden end: out of memory, or a file that is made to do it",
            "give fewer dumps at a time; dmesg tells whether the kernel ended it",
        ) from None


def _from_files(found: Sequence[InputFile], refusals: Refusals) -> tuple[DumpSet, Details, list[str]]:
    names = {file.path: file.name for file in found}
    files = [DumpFile(path=file.path, rank=rank_of(file)) for file in sorted(found)]
    files.sort(key=lambda file: file.rank)
    with readers() as pool:
        results = list(read_all(pool, files))
        read = [r for r in results if not isinstance(r, Refused)]
        dumps = merged(_numbered(read))
        closer = details_of(dumps, pool) if dumps.ranks else Details(documents={})
    for refused in results:
        if isinstance(refused, Refused):
            refusals.add(names[refused.file.path], f"refused: {refused.why}")
    return _named(dumps, names), closer, list(_nameless(read))


def _named(dumps: DumpSet, names: Mapping[str, str]) -> DumpSet:
    ranks = {number: replace(columns, file=names[columns.file]) for number, columns in dumps.ranks.items()}
    return replace(dumps, ranks=ranks)


def _nameless(read: Sequence[RankColumns]) -> list[str]:
    count = sum(r.rank < 0 for r in read)
    return [f"nothing tells the rank of {count} dumps: they are numbered in order of their names"] if count else []  # fmt: skip


def _numbered(read: list[RankColumns]) -> list[RankColumns]:
    """Dumps whose rank nothing tells get the numbers that are left."""
    taken = {r.rank for r in read}
    free = (n for n in itertools.count() if n not in taken)
    return [r if r.rank >= 0 else replace(r, rank=next(free)) for r in read]

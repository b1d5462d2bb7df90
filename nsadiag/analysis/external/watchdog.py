"""Reports of NCCL's watchdog in the form of flight-recorder dumps."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsadiag.analysis.ingest.dumps.columns import OWN_SIZES, STARTED, Group, GroupColumn, RankColumns
from nsadiag.analysis.ingest.watchdog_reports import DEFAULT, TimedOut
from nsadiag.analysis.scale.dumps.details import Details
from nsadiag.analysis.scale.dumps.dump_set import DumpSet
from nsadiag.evidence.recorder import Dump, Entry


def dumps_of(said: Sequence[tuple[TimedOut, Path]], others: Mapping[int, Path]) -> tuple[DumpSet, Details]:
    """`others`: ranks that wrote something, by file, and nothing of a timeout."""
    everyone = tuple(sorted({each.rank for each, _ in said} | {*others}))
    ranks, documents = dict[int, RankColumns](), dict[int, Dump]()
    for each, path in said:
        # Who else is in a group that is not the default one, nobody says.
        members = (
            everyone
            if each.group == DEFAULT
            else tuple(sorted(e.rank for e, _ in said if e.group == each.group))
        )
        group = Group(key=f"{each.group} {members}", name=each.group, members=members)
        ranks[each.rank] = _columns(each, str(path), group)
        documents[each.rank] = {"version": "watchdog", "pg_config": {}, "entries": [_entry(each)]}
    for rank in everyone:
        if rank not in ranks:
            ranks[rank] = RankColumns(
                rank=rank, file=str(others[rank]), version="watchdog", groups=(), open_transfers=0, entries=0
            )
    dumps = DumpSet(ranks={rank: ranks[rank] for rank in everyone})
    return dumps, Details(all_pending=dumps.all_pending[:1], documents=documents)


def _columns(each: TimedOut, file: str, group: Group) -> RankColumns:
    sizes = None if OWN_SIZES.search(each.op) else each.elements
    codes = array("I", bytes(4 * (each.enqueued - each.seq + 1)))
    codes[0] = zlib.crc32(repr((each.op, sizes)).encode()) or 1
    column = GroupColumn(
        group=group,
        process_group=(each.group, each.group),
        first=each.seq,
        codes=codes,
        open_seqs=tuple(range(each.seq, each.enqueued + 1)),
        open_states=(STARTED,) * len(codes),
    )
    return RankColumns(
        rank=each.rank, file=file, version="watchdog", groups=(column,), open_transfers=0, entries=len(codes)
    )


def _entry(each: TimedOut) -> Entry:
    return {
        "collective_seq_id": each.seq,
        "process_group": [each.group, each.group],
        "profiling_name": f"nccl:{each.op}",
        "input_sizes": [[each.elements]] if each.elements is not None else None,
        "state": "started",
        "index": each.line,
    }

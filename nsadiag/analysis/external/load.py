"""A directory of evidence from other tools, as the values that a run directory becomes."""

from __future__ import annotations

import itertools
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

from nsadiag.analysis.external import watchdog
from nsadiag.analysis.external.drafts import (
    Draft,
    Drafts,
    Statements,
    capture_of,
    read_errors,
    read_logs,
    read_stacks,
    relative,
)
from nsadiag.analysis.external.recognise import Gathered
from nsadiag.analysis.facts.exceptions import follows_a_peer
from nsadiag.analysis.ingest import logs
from nsadiag.analysis.ingest.dumps.columns import RankColumns
from nsadiag.analysis.ingest.dumps.pool import Refused, read_all, readers
from nsadiag.analysis.ingest.run_directory import rank_without_evidence
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.scale.dumps.details import Details, details_of
from nsadiag.analysis.scale.dumps.dump_set import DumpSet, merged
from nsadiag.errors import MachineError
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.documents.watch import NO_END, Watch
from nsadiag.evidence.spans import spans

MOST_REFUSED = 5


@dataclass(frozen=True, kw_only=True)
class ExternalEvidence:
    """The cell that detectors see, and what it was cut down from."""

    cell: CellEvidence
    dumps: DumpSet
    details: Details
    statements: Statements


def load_external(gathered: Gathered) -> ExternalEvidence:
    """Never raises on what is in the files: what cannot be read becomes a gap."""
    drafts, gaps = Drafts(), []
    dumps, closer, unread = _read_dumps(gathered)
    gaps += unread
    for rank, document in closer.documents.items():
        file = relative(dumps.ranks[rank].file, gathered.root)
        drafts.of(rank, file).captures.append(capture_of(source=file, flight_recorder=document))
    gaps += read_stacks(gathered, drafts)
    statements = read_logs(gathered, drafts)
    gaps += statements.gaps
    read_errors(gathered, drafts)
    said = [(t, gathered.root / file) for draft in drafts.values() for t, file in draft.timed_out[:1]]
    if said and not dumps.ranks:
        silent = {r: gathered.root / d.source for r, d in drafts.items() if not d.timed_out and d.source}
        dumps, closer = watchdog.dumps_of(said, silent)
    began_ns = _order(drafts)
    sizes = [init.size for init in statements.inits]
    seen = [*drafts, *(wait.rank for wait in statements.waits)]
    world = max(dumps.world_size, max(seen, default=-1) + 1, *sizes, 0)
    if gathered.dumps and dumps.ranks and dumps.unseen:
        gaps.append(f"no dump of rank {spans(dumps.unseen)} ({len(dumps.unseen)} of {world:,})")
    ranks = tuple(_rank(number, drafts[number]) for number in sorted(drafts))
    cell = CellEvidence(
        path=gathered.root,
        world_size=world,
        ranks=ranks,
        watch=Watch(started_mono_ns=began_ns),
        launcher_stderr="",
        processes=(),
        gaps=tuple(gaps),
    )
    return ExternalEvidence(cell=cell, dumps=dumps, details=closer, statements=statements)


def _order(drafts: Drafts) -> int:
    """Times from torchrun, where a log has none; those that nobody told come last. Returns the first."""
    for draft in drafts.values():
        # NCCL's watchdog ended it, because a peer did not come.
        draft.end = NO_END if draft.timed_out else draft.end
        ended_ns = int((draft.end.t_s or 0) * 10**9)
        draft.exceptions = [replace(e, t_mono_ns=e.t_mono_ns or ended_ns) for e in draft.exceptions]
    known = [e.t_mono_ns for d in drafts.values() for e in d.exceptions if e.t_mono_ns]
    known += [int(d.end.t_s * 10**9) for d in drafts.values() if d.end.t_s]
    began_ns = min(known, default=0)
    for draft in drafts.values():
        if draft.end.t_s is not None:
            draft.end = replace(draft.end, t_s=max(draft.end.t_s - began_ns / 1e9, 0.0))
        last_ns = max(known, default=0)
        draft.exceptions = [replace(e, t_mono_ns=e.t_mono_ns or last_ns) for e in draft.exceptions]
    return began_ns


def _read_dumps(gathered: Gathered) -> tuple[DumpSet, Details, list[str]]:
    nothing = DumpSet(ranks={}), Details(all_pending=(), documents={})
    if not gathered.dumps:
        return *nothing, []
    try:
        return _from_files(gathered, nothing)
    except BrokenProcessPool:
        raise MachineError(
            "a process that read dumps came to a sudden end: out of memory, or a file that is made to do it",
            "give fewer dumps at a time; dmesg tells whether the kernel ended it",
        ) from None


def _from_files(gathered: Gathered, nothing: tuple[DumpSet, Details]) -> tuple[DumpSet, Details, list[str]]:
    files = sorted(gathered.dumps, key=lambda file: (file.rank, file.path))
    with readers() as pool:
        results = list(read_all(pool, files))
        refused = [r for r in results if isinstance(r, Refused)]
        read = [r for r in results if not isinstance(r, Refused)]
        dumps = merged(_numbered(read))
        closer = details_of(dumps, pool) if dumps.ranks else nothing[1]
    gaps = [f"{relative(r.file.path, gathered.root)} was refused: {r.why}" for r in refused[:MOST_REFUSED]]
    nameless = sum(r.rank < 0 for r in read)
    if nameless:
        gaps.append(f"nothing tells the rank of {nameless} dumps: they are numbered in order of their names")
    if len(refused) > MOST_REFUSED:
        gaps.append(f"{len(refused) - MOST_REFUSED:,} more files were refused")
    return dumps, closer, gaps


def _numbered(read: list[RankColumns]) -> list[RankColumns]:
    """Dumps whose rank nothing tells get the numbers that are left."""
    taken = {r.rank for r in read}
    free = (n for n in itertools.count() if n not in taken)
    return [r if r.rank >= 0 else replace(r, rank=next(free)) for r in read]


def _rank(number: int, draft: Draft) -> RankEvidence:
    own = [e for e in draft.exceptions if not _follows(e)]
    return replace(
        rank_without_evidence(number),
        exception=next(iter(own or draft.exceptions), None),
        faults=draft.faults,
        end=draft.end,
        captures=tuple(replace(c, number=n) for n, c in enumerate(draft.captures, 1)),
        stderr_tail=draft.stderr_tail,
        source=draft.source or ".",
    )


def _follows(exception: Cause) -> bool:
    return follows_a_peer(exception) or bool(logs.BARRIER.search(exception.message))

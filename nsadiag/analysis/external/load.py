"""Evidence that other tools left, as the values that a run directory becomes: the same rules judge it."""

from __future__ import annotations

import itertools
import signal
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

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
from nsadiag.analysis.external.recognise import Gathered, gather
from nsadiag.analysis.external.snapshots import movement_of
from nsadiag.analysis.facts.exceptions import follows_a_peer
from nsadiag.analysis.ingest.dumps.columns import RankColumns
from nsadiag.analysis.ingest.dumps.pool import Refused, read_all, readers
from nsadiag.analysis.ingest.logs import BARRIER
from nsadiag.analysis.ingest.run_directory import rank_without_evidence
from nsadiag.analysis.records import CellEvidence, Collected, RankEvidence
from nsadiag.analysis.scale.dumps.details import Details, details_of
from nsadiag.analysis.scale.dumps.dump_set import DumpSet, merged
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence import recorder
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.documents.watch import NO_END, Watch
from nsadiag.evidence.messages import (
    ClosedProcess,
    HardwareFault,
    LostPeer,
    PortTaken,
    ProcessEnd,
    RankDisagreement,
    Rendezvous,
    Standing,
    StatedError,
    StoreWait,
    StuckWatchdog,
    ToolAnswer,
    TransportWarning,
)
from nsadiag.evidence.recorder import Dump
from nsadiag.evidence.spans import spans

MOST_REFUSED = 5
# Messages that say what happened, whatever else a log has.
TELLING = (
    ProcessEnd, ClosedProcess, HardwareFault, TransportWarning, StuckWatchdog, StoreWait, Rendezvous, PortTaken, LostPeer,
    RankDisagreement, ToolAnswer, StatedError,
)  # fmt: skip
WORTH_SHARE = 0.2  # of the communication itself: a shorter wait for others is the noise of any network
LOOKS_FOR = (
    "flight-recorder dumps (pickle or JSON), py-spy dump (text or --json), faulthandler's stacks, "
    "torchrun --log-dir, logs with tracebacks or timeouts, DeepSpeed's summaries of communication"
)


def load_external(path: Path) -> CellEvidence:
    """Never raises on what is in a file: what cannot be read becomes a gap. Raises UsageError where nothing can be judged."""
    gathered = gather(path)
    if gathered.is_empty:
        raise UsageError(
            f"nothing in {path} is evidence that nsadiag knows", f"nsadiag looks for {LOOKS_FOR}"
        )
    drafts = Drafts()
    dumps, closer, gaps = _read_dumps(gathered)
    for rank, document in closer.documents.items():
        file = relative(dumps.ranks[rank].file, gathered.root)
        drafts.of(rank, file).captures.append(capture_of(source=file, flight_recorder=document))
    gaps += read_stacks(gathered, drafts)
    statements = read_logs(gathered, drafts)
    read_errors(gathered, drafts)
    pending_s = closer.pending_s
    if not dumps.ranks:
        standings = [said.fact for said in statements.said if isinstance(said.fact, Standing)]
        pending_s = _add_timeouts(drafts, _world_size(drafts, dumps, statements), standings)
    cell = _cell(gathered, drafts, dumps, closer.kinds, statements, (*gaps, *statements.gaps))
    cell = replace(cell, collected=_collected(cell, statements, pending_s))
    if not _can_be_judged(cell, dumps):
        raise UsageError(_why_nothing(path, gathered, cell), f"nsadiag looks for {LOOKS_FOR}")
    return cell


def _cell(
    gathered: Gathered, drafts: Drafts, dumps: DumpSet, kinds: tuple[tuple[int, ...], ...],
    statements: Statements, gaps: tuple[str, ...],
) -> CellEvidence:  # fmt: skip
    began_ns = _order(drafts)
    world = _world_size(drafts, dumps, statements)
    ranks = tuple(_rank(number, drafts[number]) for number in sorted(drafts))
    cell = CellEvidence(
        path=gathered.root,
        world_size=world,
        ranks=ranks,
        kinds=kinds,
        watch=Watch(
            started_mono_ns=began_ns,
            launcher_exit_code=1 if statements.unnamed or any(map(_broke, ranks)) else None,
        ),
        unnamed=tuple(statements.unnamed),
        launcher_stderr="",
        processes=(),
        gaps=gaps,
    )
    if gathered.dumps and cell.absent:
        gap = f"no dump of rank {spans(sorted(cell.absent))} ({len(cell.absent)} of {world:,})"
        cell = replace(cell, gaps=(*gaps, gap))
    return cell


def _collected(cell: CellEvidence, statements: Statements, pending_s: float | None) -> Collected:
    """Assume that a job whose stacks or dumps were taken is stuck, where somebody waits and nothing shows that it moves."""
    movement = movement_of(cell.ranks, pending_s)
    waits = any(c.stacks or _is_pending(c.flight_recorder) for r in cell.ranks for c in r.captures)
    ranks, barrier_log = statements.never_came
    return Collected(
        movement=movement,
        is_stuck=waits
        and movement not in ("moved", "young")
        and not any(map(_broke_by_itself, cell.ranks))
        and all(map(_follows, cell.unnamed)),
        pending_s=pending_s,
        launcher_log=statements.launcher,
        started_by=statements.started_by,
        absent_from_barrier=ranks,
        barrier_log=barrier_log,
        communicators=tuple(statements.inits),
        summarised=tuple(statements.waits),
        blamed=statements.blamed,
        said=tuple(statements.said),
        pids=statements.pids,
    )


def _is_pending(dump: Dump) -> bool:
    return bool(recorder.pending(dump))


def _can_be_judged(cell: CellEvidence, dumps: DumpSet) -> bool:
    told = cell.collected
    if told is None:
        return False
    says_why = bool(cell.unnamed) or any(
        _broke(r) or any(c.stacks or c.flight_recorder for c in r.captures) for r in cell.ranks
    )
    made = {init.communicator for init in told.communicators if init.complete}
    unmade = {init.communicator for init in told.communicators} - made
    waited = any(row.more_ms >= WORTH_SHARE * row.least_ms for row in told.summarised)
    stated = any(told.of(kind) for kind in TELLING)
    return bool(dumps.ranks or says_why or told.absent_from_barrier or unmade or waited or stated)


def _why_nothing(path: Path, gathered: Gathered, cell: CellEvidence) -> str:
    if cell.gaps:
        return f"nothing in {path} could be read: {cell.gaps[0]}"
    count = len(gathered.logs)
    return (
        f"{count} log{'s' if count > 1 else ''} in {path}, and no traceback, timeout or end of a rank in them"
    )


def _broke(rank: RankEvidence) -> bool:
    return rank.exception is not None or rank.end != NO_END


def _broke_by_itself(rank: RankEvidence) -> bool:
    """Whether it ended otherwise than for want of a peer: then what its peers wait for is known."""
    if rank.exception is not None:
        return not _follows(rank.exception)
    return rank.end != NO_END and rank.end.signal != signal.SIGTERM


def _world_size(drafts: Drafts, dumps: DumpSet, statements: Statements) -> int:
    """Ranks begin at 0, and communicators and groups of dumps name their members."""
    seen = [*drafts, *(wait.rank for wait in statements.waits)]
    sizes = (init.size for init in statements.inits)
    reports = [report for draft in drafts.values() for report, _ in draft.timed_out]
    told = watchdog.world_size(reports)
    return max(dumps.world_size, statements.world_size, told, max(seen, default=-1) + 1, *sizes, 0)


def _add_timeouts(drafts: Drafts, world_size: int, standings: list[Standing]) -> float | None:
    """Add the reports of NCCL's watchdog, and where it says that others were, as dumps of their ranks; returns for how long the longest call had run."""
    reports = [report for draft in drafts.values() for report, _ in draft.timed_out]
    if not reports:
        return None
    for rank, dump in watchdog.dumps_of(reports, {*drafts}, world_size, standings):
        draft = drafts[rank]
        source = draft.timed_out[0][1] if draft.timed_out else draft.source
        draft.captures.append(capture_of(source=source, flight_recorder=dump))
    return max((each.ran_s for each in reports if each.ran_s), default=None)


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
    if not gathered.dumps:
        return DumpSet(ranks={}), Details(documents={}), []
    try:
        return _from_files(gathered)
    except BrokenProcessPool:
        raise MachineError(
            "a process that read dumps came to a sudden end: out of memory, or a file that is made to do it",
            "give fewer dumps at a time; dmesg tells whether the kernel ended it",
        ) from None


def _from_files(gathered: Gathered) -> tuple[DumpSet, Details, list[str]]:
    files = sorted(gathered.dumps, key=lambda file: (file.rank, file.path))
    with readers() as pool:
        results = list(read_all(pool, files))
        refused = [r for r in results if isinstance(r, Refused)]
        read = [r for r in results if not isinstance(r, Refused)]
        dumps = merged(_numbered(read))
        closer = details_of(dumps, pool) if dumps.ranks else Details(documents={})
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
    return follows_a_peer(exception) or bool(BARRIER.search(exception.message))

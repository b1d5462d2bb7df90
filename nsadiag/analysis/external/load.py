"""Evidence that other tools left, as the values that a run directory becomes: the same rules judge it."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsadiag.analysis.external import watchdog
from nsadiag.analysis.external.drafts import (
    Drafts,
    RankDraft,
    Statements,
    capture_of,
    read_errors,
    read_logs,
    read_stacks,
)
from nsadiag.analysis.external.dump_files import read_dumps
from nsadiag.analysis.external.inputs.listing import STDIN
from nsadiag.analysis.external.log_files import LogRead, attempt_of, read_log_files
from nsadiag.analysis.external.order import put_in_order
from nsadiag.analysis.external.recognise import Gathered, gather
from nsadiag.analysis.external.snapshots import movement_of
from nsadiag.analysis.facts.exceptions import follows_a_peer
from nsadiag.analysis.ingest.logs import BARRIER
from nsadiag.analysis.ingest.messages.watchdog import DEFAULT, TimedOut
from nsadiag.analysis.ingest.run_directory import rank_without_evidence
from nsadiag.analysis.records import CellEvidence, Collected, RankEvidence
from nsadiag.analysis.scale.dumps.details import Details
from nsadiag.analysis.scale.dumps.dump_set import DumpSet
from nsadiag.errors import UsageError
from nsadiag.evidence import recorder
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.documents.watch import NO_END, Watch
from nsadiag.evidence.messages import (
    ClosedProcess,
    HardwareFault,
    LostPeer,
    NativeStack,
    PortTaken,
    ProcessEnd,
    RankDisagreement,
    Rendezvous,
    Setting,
    Standing,
    StatedError,
    StoreWait,
    StuckWatchdog,
    TakenDown,
    ToolAnswer,
    TransportWarning,
    UnplacedRequest,
    Version,
)
from nsadiag.evidence.phrases import count
from nsadiag.evidence.recorder import Dump
from nsadiag.evidence.spans import spans

MOST_REFUSED = 5  # in one line
NOTHING_LATER = "after this attempt the job started again, and what follows shows no failure"
# Messages that say what happened, whatever else a log has.
TELLING = (
    ProcessEnd, ClosedProcess, HardwareFault, TransportWarning, StuckWatchdog, StoreWait, Rendezvous, PortTaken, LostPeer,
    RankDisagreement, ToolAnswer, StatedError, TakenDown, UnplacedRequest, NativeStack,
)  # fmt: skip
WORTH_SHARE = 0.2  # of the communication itself: a shorter wait for others is the noise of any network
LOOKS_FOR = (
    "flight-recorder dumps (pickle or JSON), py-spy dump (text or --json), faulthandler's stacks, "
    "torchrun --log-dir, logs with tracebacks or timeouts, DeepSpeed's summaries of communication"
)
MOST_RANKS = 2**20


def load_attempts(paths: Sequence[Path]) -> tuple[CellEvidence, ...]:
    """The evidence of each attempt of the job that shows anything, the last one last.

    Never raises on what is in a file: what cannot be read becomes a gap. Raises UsageError where nothing can be judged.
    """
    gathered = gather(paths)
    read = read_log_files(gathered)
    attempts = max((each.later for each in read), default=0)
    found = [
        cell for later in range(attempts, 0, -1) if _can_be_judged(cell := _earlier(gathered, read, later))
    ]
    last, has_dumps = _last(gathered, [each for each in read if not each.later])
    if has_dumps or _can_be_judged(last):
        return (*found, last)
    if not found:
        raise UsageError(_why_nothing(paths, gathered), f"nsadiag looks for {LOOKS_FOR}")
    shown = replace(found[-1], gaps=(*found[-1].gaps, *last.gaps, NOTHING_LATER))
    return (*found[:-1], shown)


def _earlier(gathered: Gathered, read: Sequence[LogRead], later: int) -> CellEvidence:
    """An attempt that others follow: dumps and stacks are of the last one."""
    drafts = Drafts()
    own = [each for each in read if each.later == later]
    numbers = [n for each in read if (n := attempt_of(each.file)) is not None]
    read_errors(
        (file for file in gathered.errors if attempt_of(file) == max(numbers, default=0) - later), drafts
    )
    statements = read_logs(own, drafts)
    return _cell(gathered, drafts, _Seen(), statements)


def _last(gathered: Gathered, read: Sequence[LogRead]) -> tuple[CellEvidence, bool]:
    """With whether there are dumps: they say something in any case."""
    drafts = Drafts()
    dumps, closer, gaps = read_dumps(gathered.dumps, gathered.refusals)
    for rank, document in closer.documents.items():
        file = dumps.ranks[rank].file
        drafts.of(rank, file).captures.append(capture_of(source=file, flight_recorder=document))
    statements = read_logs(read, drafts)
    last = max((n for file in gathered.errors if (n := attempt_of(file)) is not None), default=None)
    read_errors((file for file in gathered.errors if attempt_of(file) == last), drafts)
    numbers, of_stacks = read_stacks(gathered, drafts, statements.pids)
    seen = _Seen(
        dumps=dumps, closer=closer, gaps=(*gaps, *of_stacks, *gathered.refusals.gaps()), numbered=numbers
    )
    return _cell(gathered, drafts, seen, statements), bool(dumps.ranks)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Evidence of dumps and stacks beside the logs."""

    dumps: DumpSet = field(default_factory=lambda: DumpSet(ranks={}))
    closer: Details = field(default_factory=lambda: Details(documents={}))
    gaps: tuple[str, ...] = ()
    numbered: Mapping[int, int] = field(default_factory=dict)


def _cell(gathered: Gathered, drafts: Drafts, seen: _Seen, statements: Statements) -> CellEvidence:
    dumps, pending_s = seen.dumps, seen.closer.pending_s
    if not dumps.ranks:
        pending_s = _add_timeouts(drafts, _world_size(drafts, dumps, statements), statements)
    began_ns = put_in_order(drafts.values())
    world = _world_size(drafts, dumps, statements)
    ranks = tuple(_rank(number, drafts[number]) for number in sorted(drafts))
    cell = CellEvidence(
        path=gathered.root,
        world_size=world,
        ranks=ranks,
        kinds=seen.closer.kinds,
        watch=Watch(
            started_mono_ns=began_ns,
            launcher_exit_code=1 if statements.unnamed or any(map(_broke, ranks)) else None,
        ),
        unnamed=tuple(statements.unnamed),
        launcher_stderr="",
        processes=(),
        gaps=seen.gaps,
    )
    if dumps.ranks and cell.absent:
        gap = f"no dump of rank {spans(sorted(cell.absent))} ({len(cell.absent)} of {world:,})"
        cell = replace(cell, gaps=(*cell.gaps, gap))
    told = _collected(cell, statements, pending_s)
    collected = replace(
        told,
        files={file.name: (file.path, file.root) for file in gathered.all},
        cut=tuple(sorted(gathered.cut)),
        versions={each.of: each.version for each, _ in told.of(Version)},
        settings={each.name: each.value for each, _ in told.of(Setting)},
        numbered=seen.numbered,
        knows_size=_stated_size(drafts, dumps, statements) >= world,
    )
    return replace(cell, collected=collected)


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
        unread=tuple(statements.unread),
        pids=statements.pids,
    )


def _is_pending(dump: Dump) -> bool:
    return bool(recorder.pending(dump))


def _can_be_judged(cell: CellEvidence) -> bool:
    told = cell.collected
    assert told is not None  # they are all made here
    says_why = bool(cell.unnamed) or any(
        _broke(r) or any(c.stacks or c.flight_recorder for c in r.captures) for r in cell.ranks
    )
    made = {init.communicator for init in told.communicators if init.complete}
    unmade = {init.communicator for init in told.communicators} - made
    waited = any(row.more_ms >= WORTH_SHARE * row.least_ms for row in told.summarised)
    stated = any(told.of(kind) for kind in TELLING) or bool(told.unread)
    return bool(says_why or told.absent_from_barrier or unmade or waited or stated)


def _why_nothing(paths: Sequence[Path], gathered: Gathered) -> str:
    """One line: of each file that could not be read why, and of logs that they say nothing."""
    where = "standard input" if [*paths] == [STDIN] else " ".join(map(str, paths[:MOST_REFUSED]))
    reasons = [*gathered.refusals.gaps()]
    if logs := len(gathered.logs):
        reasons.append(f"{count(logs, 'log')} without a traceback, timeout or end of a rank")
    if not reasons:
        return f"nothing in {where} is evidence that nsadiag knows"
    more = f"; and {len(reasons) - MOST_REFUSED} more" if len(reasons) > MOST_REFUSED else ""
    return f"nothing in {where} can be judged: {'; '.join(reasons[:MOST_REFUSED])}{more}"


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
    least = watchdog.world_size(_reports(drafts))
    known = max(_stated_size(drafts, dumps, statements), least, max(seen, default=-1) + 1)
    return min(known, MOST_RANKS)  # of a damaged number no set of ranks is made


def _stated_size(drafts: Drafts, dumps: DumpSet, statements: Statements) -> int:
    """The number of ranks as lines, groups or the sizes of calls have it; 0 where nothing but ranks' own numbers tells of it."""
    sizes = (init.size for init in statements.inits)
    shares = (watchdog.shares(each) for each in _reports(drafts) if each.group == DEFAULT)
    return max(dumps.world_size, statements.world_size, *shares, *sizes, 0)


def _reports(drafts: Drafts) -> list[TimedOut]:
    return [report for draft in drafts.values() for report, _ in draft.timed_out]


def _add_timeouts(drafts: Drafts, world_size: int, statements: Statements) -> float | None:
    """Add the reports of NCCL's watchdog, and where it says that others were, as dumps of their ranks; returns for how long the longest call had run."""
    reports = _reports(drafts)
    if not reports:
        return None
    standings = [said.fact for said in statements.said if isinstance(said.fact, Standing)]
    # Whose watchdog ended it had a call that timed out, though no line of that is there.
    ended = {said.fact.rank for said in statements.said if isinstance(said.fact, TakenDown)}
    for rank, dump in watchdog.dumps_of(reports, {*drafts} - ended, world_size, standings):
        draft = drafts[rank]
        source = draft.timed_out[0][1] if draft.timed_out else draft.source
        draft.captures.append(capture_of(source=source, flight_recorder=dump))
    return max((each.ran_s for each in reports if each.ran_s), default=None)


def _rank(number: int, draft: RankDraft) -> RankEvidence:
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

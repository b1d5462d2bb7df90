"""Stacks and logs, each assigned to its rank."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGABRT, SIGTERM

from nsadiag.analysis.external import stacks
from nsadiag.analysis.external.inputs.files import InputFile
from nsadiag.analysis.external.inputs.text import encoding_of
from nsadiag.analysis.external.log_files import LogRead
from nsadiag.analysis.external.process_ends import end_of
from nsadiag.analysis.external.recognise import TORCHRUN_LOG, Gathered, rank_of
from nsadiag.analysis.external.threads import at_work
from nsadiag.analysis.facts.texts.fingerprints import fingerprints
from nsadiag.analysis.facts.texts.speakers import speaker_of
from nsadiag.analysis.ingest import logs
from nsadiag.analysis.ingest.ends import FATAL
from nsadiag.analysis.ingest.messages.lines import stamp_ns
from nsadiag.analysis.ingest.messages.starters import first_known, launcher_in
from nsadiag.analysis.ingest.messages.tools.deepspeed import Waits
from nsadiag.analysis.ingest.messages.watchdog import TimedOut
from nsadiag.analysis.records import CaptureEvidence, CommunicatorInit, Said, SummarisedWaits
from nsadiag.evidence.documents.exceptions import Cause, Raised
from nsadiag.evidence.documents.files import read_tail
from nsadiag.evidence.documents.kernel import NO_PROCESS
from nsadiag.evidence.documents.python_stacks import Threads
from nsadiag.evidence.documents.watch import NO_END, End
from nsadiag.evidence.messages import CommunicatorStep, NativeStack, ProcessEnd
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.phrases import count
from nsadiag.evidence.recorder import Dump
from nsadiag.evidence.stacks import from_faulthandler

MOST_TEXT_BYTES = 32 * 2**20
STREAM = re.compile(r"stdout|stderr|std|out|err|log", re.IGNORECASE)
LEAST_PID = 4096  # a number in a file's name from here on is rather a process's
MOST_PIDS = 8  # in a sentence
NAMED_FOR_A_RANK = re.compile(
    r"rank[_.=-]?\d+|(?:^|[_.-])(?:stderr|stdout|std|log|out|err|worker)[_.-]?\d+", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Statements:
    """The job as a whole, as logs show it."""

    launcher: str = ""  # the log that tells of ends; empty if none does
    started_by: str = ""  # the launcher's or scheduler's name; empty where nothing shows it
    never_came: tuple[tuple[int, ...], str] = (), ""  # ranks, and where a monitored barrier named them
    inits: list[CommunicatorInit] = field(default_factory=list)
    waits: list[SummarisedWaits] = field(default_factory=list)
    unnamed: list[Raised] = field(default_factory=list)  # exceptions of which nothing tells the rank
    blamed: tuple[int, str] | None = None  # the rank that the launcher calls the root cause, and where
    said: list[Said] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)  # the rank of each process that lines name with it
    world_size: int = 0  # as some line says
    unread: list[Said] = field(default_factory=list)  # lines like errors that nothing understands


@dataclass
class RankDraft:
    """One rank while its files are found one after another."""

    captures: list[CaptureEvidence] = field(default_factory=list)
    exceptions: list[Raised] = field(default_factory=list)
    end: End = NO_END
    timed_out: list[tuple[TimedOut, str]] = field(default_factory=list)
    stderr_tail: str = ""
    faults: str = ""
    source: str = ""


class Drafts(dict[int, RankDraft]):
    """Those of all ranks that any file tells of."""

    def of(self, rank: int, source: str) -> RankDraft:
        """The rank's, of which a file tells; the first such file is its source."""
        draft = self.setdefault(rank, RankDraft())
        draft.source = draft.source or source
        return draft


def read_stacks(
    gathered: Gathered, drafts: Drafts, pids: Mapping[int, int]
) -> tuple[Mapping[int, int], list[str]]:
    """Assign stacks to ranks: by what names them, and by pid where another file tells whose that is.

    Of processes whose rank nothing tells: where no evidence names a rank they get numbers, in order of file and pid, and it is
    told which; beside ranks that are known such a number would be taken for one, and they are left out. Returns the pids of
    those numbers, and gaps.
    """
    nameless: list[tuple[int | None, CaptureEvidence]] = []
    for file in sorted([*gathered.py_spy_json, *gathered.stacks]):
        try:
            found = _processes(_text(file), is_json=file in gathered.py_spy_json)
        except (OSError, ValueError, TypeError) as error:
            gathered.refusals.add(file.name, f"could not be read: {error}"[:200])
            continue
        named = rank_of(file) if len(found) == 1 and _names_a_rank(file, gathered) else -1
        for process in found:
            capture = capture_of(source=file.name, stacks=process.threads, native=process.native)
            pid = process.pid if process.pid is not None else rank_of(file)
            rank = process.rank if process.rank is not None else pids.get(pid, named)
            if rank >= 0:
                drafts.of(rank, capture.source).captures.append(capture)
            else:
                nameless.append((process.pid, capture))
    return _numbered(nameless, drafts)


def _numbered(
    nameless: list[tuple[int | None, CaptureEvidence]], drafts: Drafts
) -> tuple[Mapping[int, int], list[str]]:
    if not nameless:
        return {}, []
    processes = _names_of(nameless)
    if drafts:
        return {}, [
            f"nothing tells the rank of {processes}: their stacks are not joined to ranks that other files name; "
            "a line with rank and pid of each would do it"
        ]
    for rank, (_, capture) in enumerate(nameless):
        drafts.of(rank, capture.source).captures.append(capture)
    numbers = {rank: pid for rank, (pid, _) in enumerate(nameless) if pid is not None}
    return numbers, [
        f"nothing tells the rank of {processes}: they are numbered in this order, of file and pid"
    ]


def _names_of(nameless: list[tuple[int | None, CaptureEvidence]]) -> str:
    """`3 stacks (pids 4711, 4712, 4713)`."""
    known = [str(pid) for pid, _ in nameless if pid is not None]
    more = f" and {len(known) - MOST_PIDS} more" if len(known) > MOST_PIDS else ""
    which = f" (pid{'s' * (len(known) > 1)} {', '.join(known[:MOST_PIDS])}{more})" if known else ""
    return f"{count(len(nameless), 'stack')}{which}"


def _names_a_rank(file: InputFile, gathered: Gathered) -> bool:
    """A lone number may be a pid: then it is larger than the number of files."""
    files = len(gathered.stacks) + len(gathered.py_spy_json)
    rank = rank_of(file)
    return 0 <= rank < max(LEAST_PID, files) and ("rank" in file.name.lower() or rank < 2 * files)


def _processes(text: str, *, is_json: bool) -> list[stacks.ProcessStacks]:
    if is_json:
        return [stacks.ProcessStacks(pid=None, rank=None, threads=stacks.from_json(text), native="")]
    found = list(stacks.from_py_spy(text))
    if found:
        return found
    threads = from_faulthandler(text)
    return [stacks.ProcessStacks(pid=None, rank=None, threads=threads, native="")] if threads else []


def read_logs(read: Sequence[LogRead], drafts: Drafts) -> Statements:
    launcher = ""
    inits: list[CommunicatorInit] = []
    waits: list[SummarisedWaits] = []
    never_came: tuple[tuple[int, ...], str] = (), ""
    unnamed: list[Raised] = []
    world_size = 0
    started_by: list[str] = []
    blamed: tuple[int, str] | None = None
    said: list[Said] = []
    pids: dict[int, int] = {}
    unread: list[Said] = []
    own_of = _own_ranks(read)
    for file, facts, named, _ in read:
        source = file.name
        own = own_of[file.name]
        unnamed += _put_log(drafts, facts, source, own, named)
        world_size = max(world_size, facts.world_size)
        said += [Said(fact=fact, source=f"{source}#line {fact.line}") for fact in facts.facts]
        pids |= {**named} | {**facts.rank_of_pid} | {ended.pid: ended.rank for ended in facts.ended}
        unread += [Said(fact=fact, source=f"{source}#line {fact.line}") for fact in facts.unread]
        started_by += [*facts.started_by, launcher_in(source)]
        if facts.ended:
            launcher = source
            # The root cause stands below the other failures.
            blamed = facts.ended[-1].rank, f"{source}#line {facts.ended[-1].line}"
        elif any(end.rank is not None for end in facts.of(ProcessEnd)):
            launcher = launcher or source
        inits += _inits(facts, source)
        if facts.waits:
            waits.append(_waits(facts.waits, own, source))
        if facts.never_came:
            never_came = facts.never_came, f"{source}#line {facts.never_came_line}"
    return Statements(
        launcher=launcher,
        started_by=first_known(started_by),
        never_came=never_came,
        inits=inits,
        waits=waits,
        unnamed=unnamed,
        blamed=blamed,
        said=said,
        pids=pids,
        world_size=world_size,
        unread=unread,
    )


def _own_ranks(read: Sequence[LogRead]) -> dict[str, int]:
    """By file, the one rank whose log it is, or -1; numbers that files of several series share are no ranks (`master-0`, `worker-0`)."""
    found = {file.name: rank_of(file) if _is_of_one_rank(file, facts) else -1 for file, facts, *_ in read}
    series: dict[int, set[str]] = {}
    for file, *_ in read:
        series.setdefault(rank_of(file), set()).add(STREAM.sub("", re.sub(r"\d+", "#", file.name)))
    shared = {rank for rank, names in series.items() if rank >= 0 and len(names) > 1}
    return {
        name: -1 if shared and "rank" not in name.lower() and not TORCHRUN_LOG.search(name) else rank
        for name, rank in found.items()
    }


def _is_of_one_rank(file: InputFile, facts: logs.LogFacts) -> bool:
    if len(facts.ranks) > 1 or facts.ended:
        return False
    if rank_of(file) >= LEAST_PID and "rank" not in file.name.lower():
        return False
    return bool(
        TORCHRUN_LOG.search(file.name)
        or TORCHRUN_LOG.search(file.path)
        or NAMED_FOR_A_RANK.search(file.on_disk.name if file.asked else Path(file.name).name)
        or re.search(r"rank[_-]?\d+", file.name)
    )


def _inits(facts: logs.LogFacts, source: str) -> Iterator[CommunicatorInit]:
    for step in facts.of(CommunicatorStep):
        yield CommunicatorInit(
            communicator=step.communicator,
            size=step.size,
            rank=step.member,
            complete=step.complete,
            source=f"{source}#line {step.line}",
        )


def _waits(waits: Waits, own: int, source: str) -> SummarisedWaits:
    return SummarisedWaits(
        rank=max(own, 0),
        least_ms=waits.least_ms,
        more_ms=waits.more_ms,
        source=f"{source}#line {waits.line}",
    )


def _put_log(
    drafts: Drafts, facts: logs.LogFacts, source: str, own: int, pids: Mapping[int, int]
) -> list[Raised]:
    """Assign what a log says to its ranks; returns the exceptions of which it does not tell the rank.

    `own`: the one rank whose log it is, or -1.
    """
    for rank, tail in facts.ranks.items() if own < 0 else [(own, facts.tail)]:
        draft = drafts.of(rank, source)
        draft.stderr_tail = tail
        # Of a log of one rank no prefix needs to name it.
        speaker = rank if rank in facts.stacks or own < 0 else None
        _put_stacks(draft, facts, source, speaker)
    _put_debugged(drafts, facts, source, own, pids)
    unnamed = []
    for raised in facts.raised:
        rank = raised.rank if raised.rank is not None else pids.get(raised.speaker.pid or 0, own)
        if rank < 0 and (speaker := speaker_of(raised.exception.message)) is not None:
            rank = speaker
        exception = _exception(raised.exception, f"{source}#line {raised.line}", stamp_ns(raised.time))
        if rank >= 0:
            drafts.of(rank, source).exceptions.append(exception)
            # A message may say what a peer did.
            for told in fingerprints(raised.exception.message):
                drafts.of(told.rank, source)
        else:
            unnamed.append(exception)
    for timed_out in facts.timed_out:
        drafts.of(timed_out.rank, source).timed_out.append((timed_out, source))
    for speaker_rank, what in facts.fatal.items():
        whose, number = own if speaker_rank is None else speaker_rank, FATAL.get(what)
        # What aborts has said why.
        if whose >= 0 and number not in (None, SIGABRT):
            drafts.of(whose, source).end = End(pid=None, t_s=0.0, signal=number, exit_code=None)
    for ended in facts.ended:
        drafts.of(ended.rank, source).end = End(
            pid=ended.pid,
            t_s=ended.t_s or 0.0,
            signal=-ended.code if ended.code < 0 else None,
            exit_code=ended.code if ended.code >= 0 else None,
        )
    for end in facts.of(ProcessEnd):
        # Of one that was ended for a reason the reason is judged, and its launcher ends the others.
        if end.rank is not None and end.why == "unknown" and (seen := end_of(end)) and seen.signal != SIGTERM:
            draft = drafts.of(end.rank, source)
            draft.end = seen if draft.end == NO_END else draft.end
    return unnamed


def _put_stacks(draft: RankDraft, facts: logs.LogFacts, source: str, speaker: int | None) -> None:
    """Stacks that a rank's faulthandler wrote into its log."""
    if threads := from_faulthandler(facts.stacks.get(speaker, "")):
        draft.faults = draft.stderr_tail if speaker in facts.fatal else ""
        draft.captures.append(capture_of(source=source, stacks=threads))


def _put_debugged(
    drafts: Drafts, facts: logs.LogFacts, source: str, own: int, pids: Mapping[int, int]
) -> None:
    """Python's frames that a debugger showed of ranks that are known: by a heading, a pid, or the file's name."""
    by_rank: dict[int, list[NativeStack]] = {}
    for stack in facts.of(NativeStack):
        rank = stack.rank if stack.rank is not None else pids.get(stack.pid or 0, own)
        if rank >= 0:
            by_rank.setdefault(rank, []).append(stack)
    for rank, told in by_rank.items():
        if threads := stacks.from_debugger(told):
            drafts.of(rank, source).captures.append(capture_of(source=source, stacks=threads))


def _exception(exception: Cause, source: str, stamped_ns: int = 0) -> Raised:
    return Raised(**vars(exception), thread="MainThread", t_mono_ns=0, t_wall_ns=stamped_ns, source=source)


def read_errors(files: Iterable[InputFile], drafts: Drafts) -> None:
    """torchrun's error.json: the first exception of a rank, with the time."""
    for file in sorted(files):
        rank = rank_of(file)
        try:
            document = json.loads(_text(file))
            message = document["message"]
            extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
            said = message.get("message", "") if isinstance(message, dict) else str(message)
            facts = logs.read_log(logs.numbered(str(extra.get("py_callstack", ""))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        kind, _, rest = str(said).partition(": ")
        first = facts.raised[-1].exception if facts.raised else Cause(type=kind, message=rest)
        line = facts.raised[-1].line if facts.raised else 1
        exception = _exception(first, f"{file.name}#line {line}")
        moment = natural(str(extra.get("timestamp", "")))
        if moment is not None:
            exception = replace(exception, t_mono_ns=moment * 10**9)
        if rank >= 0:
            drafts.of(rank, file.name).exceptions.insert(0, exception)


def capture_of(
    *,
    source: str,
    stacks: Threads = (),
    flight_recorder: Dump | None = None,
    native: str = "",
) -> CaptureEvidence:
    return CaptureEvidence(
        number=1,
        stacks=at_work(stacks),
        flight_recorder=flight_recorder or Dump(),
        proc=NO_PROCESS,
        gaps=(),
        source=source,
        native=native,
    )


def _text(file: InputFile) -> str:
    """The end of a file of stacks, in whichever encoding."""
    raw = read_tail(file.on_disk, MOST_TEXT_BYTES, Path(file.root))
    return raw.decode(encoding_of(raw[:4096]), "replace").removeprefix("\ufeff").replace("\0", "")

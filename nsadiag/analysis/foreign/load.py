"""A directory of evidence that others collected, as the same plain values that a run directory becomes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsadiag.analysis.dumps.close_up import CloseUp, close_up
from nsadiag.analysis.dumps.crowd import Crowd, merged
from nsadiag.analysis.dumps.pool import Refused, read_all, readers
from nsadiag.analysis.exceptions import follows_a_peer
from nsadiag.analysis.foreign import logs, stacks
from nsadiag.analysis.foreign.recognise import TORCHRUN_LOG, Gathered, rank_of
from nsadiag.analysis.load import (
    LOG_TAIL_BYTES,
    CaptureEvidence,
    CellEvidence,
    RankEvidence,
    rank_without_evidence,
)
from nsadiag.evidence.spans import spans

MOST_LOG_BYTES = 32 * 2**20
MOST_REFUSED = 5
NAMED_FOR_A_RANK = re.compile(
    r"rank[_.=-]?\d+|(?:^|[_.-])(?:stderr|stdout|std|log|out|err|worker)[_.-]?\d+", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """The cell that detectors see, and what it was cut down from."""

    cell: CellEvidence
    crowd: Crowd
    close_up: CloseUp
    launcher_log: str  # the log that tells of ends; empty if none does


@dataclass
class _Draft:
    """One rank while its files are found one after another."""

    captures: list[CaptureEvidence] = field(default_factory=list)
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    timed_out: list[tuple[logs.TimedOut, str]] = field(default_factory=list)
    stderr_tail: str = ""
    faults: str = ""
    source: str = ""


class _Drafts(dict[int, _Draft]):
    def __missing__(self, rank: int) -> _Draft:
        self[rank] = _Draft()
        return self[rank]


def load_foreign(gathered: Gathered) -> Foreign:
    """Never raises on what is in the files: what cannot be read becomes a gap."""
    drafts, gaps = _Drafts(), []
    crowd, closer, unread = _read_dumps(gathered)
    gaps += unread
    for rank, document in closer.documents.items():
        file = _relative(crowd.ranks[rank].file, gathered.root)
        drafts[rank].captures.append(_capture(source=file, flight_recorder=document))
        drafts[rank].source = file
    gaps += _read_stacks(gathered, drafts)
    launcher_log, told = _read_logs(gathered, drafts)
    gaps += told
    _read_errors(gathered, drafts)
    world = max(crowd.world_size, max(drafts, default=-1) + 1)
    if crowd.ranks and crowd.unseen:
        gaps.append(f"no dump of rank {spans(crowd.unseen)} ({len(crowd.unseen)} of {world:,})")
    ranks = tuple(_rank(number, drafts[number]) for number in sorted(drafts))
    cell = CellEvidence(
        path=gathered.root,
        world_size=world,
        ranks=ranks,
        watch={},
        launcher_stderr="",
        processes=(),
        gaps=tuple(gaps),
    )
    return Foreign(cell=cell, crowd=crowd, close_up=closer, launcher_log=launcher_log)


def _read_dumps(gathered: Gathered) -> tuple[Crowd, CloseUp, list[str]]:
    nothing = Crowd(ranks={}), CloseUp(meetings=(), documents={})
    if not gathered.dumps:
        return *nothing, []
    files = sorted(gathered.dumps, key=lambda file: (file.rank, file.path))
    with readers() as pool:
        results = list(read_all(pool, files))
        refused = [r for r in results if isinstance(r, Refused)]
        crowd = merged(r for r in results if not isinstance(r, Refused))
        closer = close_up(crowd, pool) if crowd.ranks else nothing[1]
    gaps = [f"{_relative(r.file.path, gathered.root)} was refused: {r.why}" for r in refused[:MOST_REFUSED]]
    if len(refused) > MOST_REFUSED:
        gaps.append(f"{len(refused) - MOST_REFUSED:,} more files were refused")
    return crowd, closer, gaps


def _read_stacks(gathered: Gathered, drafts: _Drafts) -> list[str]:
    """Processes whose rank nothing tells get the numbers that are left, in order of file and pid."""
    nameless: list[CaptureEvidence] = []
    gaps = []
    for path in sorted([*gathered.py_spy_json, *gathered.stacks]):
        try:
            found = _processes(path, _text(path))
        except (OSError, ValueError, TypeError) as error:
            gaps.append(f"{_relative(path, gathered.root)} could not be read: {error}"[:200])
            continue
        named = rank_of(path, gathered.root) if len(found) == 1 and _names_a_rank(path, gathered) else -1
        for process in found:
            capture = _capture(
                source=_relative(path, gathered.root), stacks=process.threads, native=process.native
            )
            rank = process.rank if process.rank is not None else named
            if rank >= 0:
                drafts[rank].captures.append(capture)
                drafts[rank].source = drafts[rank].source or capture.source
            else:
                nameless.append(capture)
    free = (n for n in range(len(nameless) + len(drafts)) if n not in drafts)
    for rank, capture in zip(list(free), nameless, strict=False):
        drafts[rank].captures.append(capture)
        drafts[rank].source = capture.source
    if nameless:
        gaps.append(
            f"nothing tells the rank of {len(nameless)} stacks: they are numbered in order of file and pid"
        )
    return gaps


def _names_a_rank(path: Path, gathered: Gathered) -> bool:
    """A lone number may be a pid: then it is larger than the number of files."""
    return 0 <= rank_of(path, gathered.root) < max(
        4096, len(gathered.stacks) + len(gathered.py_spy_json)
    ) and (
        "rank" in path.as_posix().lower()
        or rank_of(path, gathered.root) < 2 * (len(gathered.stacks) + len(gathered.py_spy_json))
    )


def _processes(path: Path, text: str) -> list[stacks.ProcessStacks]:
    if text.lstrip()[:1] in ("[", "{"):
        return [stacks.ProcessStacks(pid=None, rank=None, threads=stacks.from_json(text), native="")]
    found = list(stacks.from_py_spy(text))
    if found:
        return found
    threads = stacks.from_faulthandler(text)
    return [stacks.ProcessStacks(pid=None, rank=None, threads=threads, native="")] if threads else []


def _read_logs(gathered: Gathered, drafts: _Drafts) -> tuple[str, list[str]]:
    launcher, gaps = "", []
    never_came: tuple[int, ...] = ()
    for path in sorted(gathered.logs):
        try:
            text = _text(path)
        except OSError as error:
            gaps.append(f"{_relative(path, gathered.root)} could not be read: {error.strerror}")
            continue
        facts = logs.read_log(text)
        source = _relative(path, gathered.root)
        own = rank_of(path, gathered.root) if _is_of_one_rank(path, facts) else -1
        _put_log(drafts, facts, source, own, text)
        if facts.ended:
            launcher = source
        never_came = facts.never_came or never_came
    for rank in {r for r, draft in drafts.items() if draft.timed_out}:
        drafts[rank].captures.append(_from_watchdog(drafts[rank]))
    return launcher, gaps


def _is_of_one_rank(path: Path, facts: logs.LogFacts) -> bool:
    if len(facts.ranks) > 1 or facts.ended:
        return False
    return bool(
        TORCHRUN_LOG.search(path.as_posix())
        or NAMED_FOR_A_RANK.search(path.name)
        or re.search(r"rank[_-]?\d+", path.as_posix())
    )


def _put_log(drafts: _Drafts, facts: logs.LogFacts, source: str, own: int, text: str) -> None:
    if own >= 0:
        drafts[own].source = drafts[own].source or source
        drafts[own].stderr_tail = text[-LOG_TAIL_BYTES:]
        threads = stacks.from_faulthandler(text)
        if threads:
            drafts[own].faults = text[-LOG_TAIL_BYTES:] if logs.FATAL.search(text) else ""
            drafts[own].captures.append(_capture(source=source, stacks=threads))
    for raised in facts.raised:
        rank = raised.rank if raised.rank is not None else own
        if rank < 0 and not facts.ended:
            rank = 0 if not drafts else -1
        if rank >= 0:
            drafts[rank].exceptions.append(_exception(raised, source))
            drafts[rank].source = drafts[rank].source or source
    for timed_out in facts.timed_out:
        drafts[timed_out.rank].timed_out.append((timed_out, source))
        drafts[timed_out.rank].source = drafts[timed_out.rank].source or source
    for ended in facts.ended:
        how = {"signal": -ended.code} if ended.code < 0 else {"exit_code": ended.code}
        drafts[ended.rank].end = {"pid": ended.pid, "t_s": ended.t_s or 0.0, **how}
    for rank in facts.ranks:
        drafts[rank].source = drafts[rank].source or source


def _exception(raised: logs.Raised, source: str) -> dict[str, Any]:
    return {
        "type": raised.type,
        "message": raised.message,
        "thread": "MainThread",
        "t_mono_ns": 0,
        "frames": list(raised.frames),
        "source": f"{source}#line {raised.line}",
    }


def _from_watchdog(draft: _Draft) -> CaptureEvidence:
    """What NCCL's watchdog says is what a flight recorder would: who waits in which collective."""
    first, source = min(draft.timed_out, key=lambda pair: (pair[0].seq, pair[0].group))
    entry = {
        "collective_seq_id": first.seq,
        "process_group": [first.group, first.group],
        "profiling_name": f"nccl:{first.op}",
        "input_sizes": [[first.elements]],
        "input_dtypes": None,
        "state": "started",
        "retired": False,
        "time_created_ns": 0,
        "index": first.line,
    }
    return _capture(
        source=source, flight_recorder={"version": "watchdog", "pg_config": {}, "entries": [entry]}
    )


def _read_errors(gathered: Gathered, drafts: _Drafts) -> None:
    """torchrun's error.json: the first exception of a rank, with the time."""
    for path in sorted(gathered.errors):
        rank = rank_of(path, gathered.root)
        try:
            document = json.loads(_text(path))
            message = document["message"]
            extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
            said = message.get("message", "") if isinstance(message, dict) else str(message)
            facts = logs.read_log(f"{extra.get('py_callstack', '')}\n")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        kind, _, rest = str(said).partition(": ")
        told = (
            facts.raised[-1]
            if facts.raised
            else logs.Raised(rank=None, type=kind, message=rest, frames=(), line=1)
        )
        exception = _exception(told, _relative(path, gathered.root))
        moment = str(extra.get("timestamp", ""))
        if moment.isdigit():
            exception["t_mono_ns"] = int(moment) * 10**9
        if rank >= 0:
            drafts[rank].exceptions.insert(0, exception)
            drafts[rank].source = drafts[rank].source or _relative(path, gathered.root)


def _rank(number: int, draft: _Draft) -> RankEvidence:
    own = [e for e in draft.exceptions if not follows_a_peer(e)]
    return replace(
        rank_without_evidence(number),
        exception=next(iter(own or draft.exceptions), None),
        faults=draft.faults,
        end=draft.end,
        captures=tuple(replace(c, number=n) for n, c in enumerate(draft.captures, 1)),
        stderr_tail=draft.stderr_tail,
        source=draft.source or ".",
    )


def _capture(
    *,
    source: str,
    stacks: Iterable[dict[str, Any]] = (),
    flight_recorder: dict[str, Any] | None = None,
    native: str = "",
) -> CaptureEvidence:
    return CaptureEvidence(
        number=1,
        stacks=list(stacks),
        flight_recorder=flight_recorder or {},
        proc={},
        gaps=[],
        source=source,
        native=native,
    )


def _text(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MOST_LOG_BYTES))
        return file.read().decode("utf-8", "replace")


def _relative(path: str | Path, root: Path) -> str:
    try:
        return Path(path).relative_to(root).as_posix()
    except ValueError:
        return str(path)

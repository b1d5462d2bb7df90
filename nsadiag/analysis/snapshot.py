"""The current state of every rank of a job, from recordings alone: no process is paused or questioned."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from nsadiag.analysis.facts.collective_waits import Participation, participations_of, waits_in
from nsadiag.analysis.facts.groups import DEFAULT
from nsadiag.analysis.facts.spans import spans_of
from nsadiag.analysis.facts.time_parts import KINDS as TIMED
from nsadiag.analysis.facts.time_parts import parts_of, steps_and_gradients
from nsadiag.errors import UsageError
from nsadiag.evidence.iterations import Iterations
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.phrases import TIME_PARTS
from nsadiag.evidence.ring.blackbox import Counter, Kind
from nsadiag.evidence.ring.header import Header
from nsadiag.evidence.ring.reader import Event, Recording, has_grown, read_blackbox
from nsadiag.evidence.table import Table

COLLECTIVES = 2000  # events of them that are read: once a second, of each rank
WHOLE_UP_TO = (
    16  # ranks, of which whole rings are read; of more the newest events, so that a look takes a second
)
EVENTS, FEWEST_EVENTS = 100_000, 300  # of all ranks together, and of each
RATE_S = 30.0  # the rate is of the steps of so many seconds
KINDS = {int(kind) for kind in Kind}


@dataclass(frozen=True, kw_only=True)
class RankNow:
    """One rank. Times in seconds; None where the recording does not tell."""

    rank: int
    host: str
    pid: int | None
    step: int  # of an optimizer; where none was made, the iterations that the ring still shows
    rate_per_s: float | None
    phase: str  # what has begun and not ended, outermost first: "backward", "forward > all_reduce"
    place: str  # the user's line of the innermost of them that has one: "train.py:41"
    last: str  # the newest event
    quiet_s: float | None  # since that event
    ended: bool
    waited_for_s: float = 0.0  # by peers, now: in a collective that this rank has not come to
    waited_for_total_s: float = 0.0  # and in those that the rings still show
    waiters: tuple[int, ...] = ()  # now
    parts: Mapping[str, float] = field(
        default_factory=dict
    )  # shares of its late steps, by the names of evidence.phrases.TIME_PARTS
    event: int = 0  # number of the newest event, from 1

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def running_in(path: Path) -> list[RunDir]:
    """The run in the directory, or the cells of a matrix that run now; before any does, none. Raises UsageError."""
    cells = path / "cells"
    if cells.is_dir() or (path / "matrix.json").exists():
        found = [RunDir(path=p) for p in sorted(cells.iterdir())] if cells.is_dir() else []
        return [cell for cell in found if (cell.path / "ranks").is_dir() and not cell.verdict.exists()]
    if not path.is_dir() or not any((path / name).exists() for name in ("run.json", "ranks", "nodes")):
        raise UsageError(f"{path} holds no run", "give what nsadiag run or nsadiag matrix was given as --out")
    return [RunDir(path=path)]


def is_over(path: Path) -> bool:
    """Whether the run, or the whole matrix, has come to its end."""
    return bool(read_json(path / "run.json", {}).get("ended_at"))


def ranks_now(run: RunDir) -> Iterator[RankNow]:
    """In order of rank; one whose recording cannot be read yet is left out."""
    ends = read_json(run.ends, {})
    found: dict[int, RankNow] = {}
    participations: list[Participation] = []
    directories = list(run.ranks())
    newest = None if len(directories) <= WHOLE_UP_TO else max(EVENTS // len(directories), FEWEST_EVENTS)
    for directory in directories:
        recording = read_blackbox(directory.blackbox, newest=newest)
        if recording.header is not None:
            # One that was left alive has a record as well, without a time.
            ended = ends.get(str(directory.rank), {}).get("t_s") is not None
            now = _now(recording, recording.header, ended=ended, reduces=directory.ddp.exists())
            found[now.rank] = now
            participations += _participations(now.rank, recording, recording.header)
    yield from _with_waits(found, participations, time.time())


def has_moved(run: RunDir, seen: Sequence[RankNow]) -> bool:
    """Whether a rank has come, ended or written an event since these were seen: a glance, where `ranks_now` reads rings."""
    ends = read_json(run.ends, {})
    return len(list(run.ranks())) != len(seen) or any(
        rank.ended != (ends.get(str(rank.rank), {}).get("t_s") is not None)
        or has_grown(run.rank(rank.rank).blackbox, rank.event)
        for rank in seen
    )


def later(rank: RankNow, by_s: float) -> RankNow:
    """The same that many seconds later, in which no rank moved."""
    waited_s = by_s if rank.waiters else 0.0
    return replace(
        rank,
        quiet_s=None if rank.quiet_s is None else round(rank.quiet_s + by_s, 1),
        waited_for_s=round(rank.waited_for_s + waited_s, 1),
        waited_for_total_s=round(rank.waited_for_total_s + waited_s, 1),
    )


def _participations(rank: int, recording: Recording, header: Header) -> list[Participation]:
    """Its newest collectives, in seconds of the wall's clock, so that those of another machine can be laid beside them."""
    offset_ns = header.wall_ns - header.monotonic_ns
    newest = recording.events[recording.events["kind"] == Kind.COLLECTIVE][-COLLECTIVES:]
    recent = replace(recording, events=newest)
    spans = spans_of(rank, recent, lambda t_ns: (t_ns + offset_ns) / 1e9, Kind.COLLECTIVE)
    return participations_of(rank, spans, lambda _, name: name)


def _with_waits(
    found: dict[int, RankNow], participations: list[Participation], now_s: float
) -> Iterator[RankNow]:
    """The same with how long peers have waited for each; now by those who stand in a collective that it has not come to."""
    total: dict[int, float] = defaultdict(float)
    for wait in waits_in(participations):
        total[wait.rank] += wait.for_s
    met: dict[str, set[int]] = defaultdict(set)
    for one in participations:
        met[one.group].add(one.rank)
    current: dict[int, list[Participation]] = defaultdict(list)
    furthest: dict[str, dict[int, int]] = defaultdict(
        dict
    )  # by group and rank, the last call that it has come to
    for one in participations:
        furthest[one.group][one.rank] = max(one.call, furthest[one.group].get(one.rank, 0))
    for one in participations:
        if one.left_s is None and not found[one.rank].ended:
            came = {rank for rank, call in furthest[one.group].items() if call >= one.call}
            members = set(found) if one.group in DEFAULT else met[one.group]
            for missing in members - came:
                current[missing].append(one)
    for number, rank in sorted(found.items()):
        held = current.get(number, [])
        waited_s = now_s - min((one.blocked_s for one in held), default=now_s)
        yield replace(
            rank,
            waited_for_s=round(waited_s, 1),
            waited_for_total_s=round(total[number] + waited_s, 1),
            waiters=tuple(sorted({one.rank for one in held})),
        )


def _now(recording: Recording, header: Header, *, ended: bool, reduces: bool) -> RankNow:
    events = recording.events
    newest = next(recording.decode(events[-1:]), None)
    # The header ties the rank's own clock to the wall's, so that it may be another machine's.
    now_ns = time.time_ns() - header.wall_ns + header.monotonic_ns
    open_, place = _open(recording)
    first_ns = now_ns - int(RATE_S * 1e9)
    return RankNow(
        rank=header.rank,
        host=header.host,
        pid=header.pid,
        step=int(header.counters.get(Counter.STEPS, 0)) or _iterations(recording),
        rate_per_s=_rate(events, now_ns),
        phase="ended" if ended else " > ".join(open_) or ("starting" if not len(events) else "between"),
        place="" if ended else place,
        last=_said(newest) if newest is not None else "",
        quiet_s=round((now_ns - newest.t_ns) / 1e9, 1) if newest is not None else None,
        ended=ended,
        event=newest.sequence if newest is not None else 0,
        parts=_parts(header.rank, recording, first_ns, reduces=reduces),
    )


def _parts(rank: int, recording: Recording, first_ns: int, *, reduces: bool) -> dict[str, float]:
    """The parts of its late steps, as `time_parts` has it; empty where no phases were recorded."""
    recent = recording.events[recording.events["t_ns"] > first_ns]
    found = replace(recording, events=recent)
    steps = recent[recent["kind"].isin((Kind.STEP, Kind.GRADIENT))]
    marks = Table(
        {"t_s": [t / 1e9 for t in steps["t_ns"]], "name": found.names_of(steps)}
        | {name: steps[name].tolist() for name in ("kind", "a", "thread")}
    )
    reduces = reduces or recording.events["kind"].isin((Kind.UNIT,)).any()
    made, gradients, thread = steps_and_gradients(marks)
    spans = spans_of(rank, found, lambda t_ns: t_ns / 1e9, *TIMED)
    rows = [
        row
        for row in parts_of(rank, made, gradients, thread, spans=spans, reduces=reduces)
        if row.compute_s is not None
    ]
    whole_s = sum(row.step_s for row in rows)
    return (
        {part: round(sum(getattr(row, f"{part}_s") for row in rows) / whole_s, 3) for part in TIME_PARTS}
        if whole_s
        else {}
    )


def _iterations(recording: Recording) -> int:
    own = recording.events[recording.events["thread"] == (recording.pid or 0)]
    counter = Iterations()
    counter.take_all(zip(own["kind"].tolist(), own["phase"].tolist(), strict=True))
    return counter.count


def _rate(events: Table, now_ns: int) -> float | None:
    """Steps a second of late; up to now where the last one is long ago."""
    t_ns = events["t_ns"][events["kind"] == Kind.STEP]
    recent = t_ns[t_ns > now_ns - RATE_S * 1e9]
    if len(recent) < 2:
        return 0.0 if len(t_ns) > 1 else None
    typical_ns = float(recent[-1] - recent[0]) / (len(recent) - 1)
    silence_ns = max(now_ns - float(recent[-1]) - typical_ns, 0.0)
    return round((len(recent) - 1) / ((float(recent[-1] - recent[0]) + silence_ns) / 1e9), 3)


def _open(recording: Recording) -> tuple[list[str], str]:
    """The open spans of the main thread, outermost first, and the innermost line that any of them names."""
    found: list[str] = []
    place = ""
    for event in recording.open_spans:
        if event.kind not in (Kind.PROCESS, Kind.MODULE):
            found.append(_said(event))
            place = place or _place(event.site)
    return found[::-1], place


def _said(event: Event) -> str:
    number = event.kind
    kind = Kind(number).name.lower().replace("_", " ") if number in KINDS else f"kind {number}"
    name = event.name
    if number in (Kind.FORWARD, Kind.COLLECTIVE, Kind.PROCESS_GROUP, Kind.OPTIMIZER, Kind.UNIT) and name:
        return name if number != Kind.FORWARD else f"forward {name}"
    return f"{kind} {name}".strip()


def _place(site: str) -> str:
    """`train.py:41` of `/path/to/train.py:41:main`."""
    file, _, rest = site.rpartition("/")
    name, _, line = rest.partition(":")
    return f"{name}:{line.partition(':')[0]}" if file or rest else ""

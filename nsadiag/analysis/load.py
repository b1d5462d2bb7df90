"""Reads one run directory (or cell) into plain values; what is missing or broken becomes a gap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nsadiag.analysis.told_ends import told_end
from nsadiag.evidence.layout import CLOCK, OOM, CaptureDir, RankDir, RunDir, read_json, read_json_lines
from nsadiag.evidence.pickles import PickleRefused, read_pickle
from nsadiag.evidence.reader import Recording, read_blackbox
from nsadiag.evidence.sources import read_sources
from nsadiag.evidence.spans import spans

LOG_TAIL_BYTES = 64 * 1024
FEW_NAMES = 4
# What faulthandler says when a signal kills the process, and what torchrun says of a rank that it reaped before us.


@dataclass(frozen=True, kw_only=True)
class CaptureEvidence:
    """One look at one rank."""

    number: int
    stacks: list[dict[str, Any]]  # py-spy's threads
    flight_recorder: dict[str, Any]
    proc: dict[str, Any]
    gaps: list[dict[str, Any]]
    source: str  # relative to the run directory
    answers: dict[str, Any] = field(default_factory=dict)
    native: str = ""  # py-spy's text, with the native frames among the Python ones
    tasks: tuple[dict[str, Any], ...] = ()  # of the main thread's event loop, or of those of other threads
    ungraded: dict[str, Any] = field(default_factory=dict)  # parameters in DDP that had no gradient then
    children: tuple[CaptureEvidence, ...] = ()  # processes that the rank started; `number` is the pid


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """Everything that one rank left behind."""

    rank: int
    meta: dict[str, Any]
    recording: Recording
    exception: dict[str, Any] | None
    faults: str
    ddp: list[dict[str, Any]]
    # nodes of the autograd graph by type and by module, of the step it was last counted in
    graph: dict[str, Any]
    # checkpointed functions that backward ran with other modules than forward
    recomputed: list[dict[str, Any]]
    recorded_gradients: list[str] | None  # the parameters that are looked at, where it is not all of them
    units: list[dict[str, Any]]  # FSDP's
    loaders: list[dict[str, Any]]  # with the pids of their workers
    settings: dict[str, Any]
    end: dict[str, Any]
    leaving: dict[str, Any] | None  # where it called exit, if it did
    raised: list[dict[str, Any]]  # exceptions that did not end it
    signals: list[dict[str, Any]]  # that it sent
    wraps: list[dict[str, Any]]  # models as they were handed to DDP or FSDP1
    ungraded: list[dict[str, Any]]  # parameters that an optimizer found without a gradient, at each change
    unwaited: list[dict[str, Any]]  # asynchronous collectives that the user never waited for
    replicas: list[dict[str, Any]]  # sums of some parameters, now and then
    evaluated: list[dict[str, Any]]  # sums over models that it evaluated, now and then
    given: list[dict[str, Any]]  # sums over what the model was given, now and then
    unheld: list[dict[str, Any]]  # parameters with gradients that are in no optimizer
    first_steps: list[dict[str, Any]]  # what the probe `parity` recorded of them, where it was asked for
    piles: list[
        dict[str, Any]
    ]  # what the user's lines have registered: hooks, handlers, groups of parameters
    threads: list[dict[str, Any]]  # started, that the interpreter waits for at its end
    samples: list[dict[str, Any]]  # innermost user line, now and then, while it ran
    captures: tuple[CaptureEvidence, ...]
    stderr_tail: str
    gaps: tuple[str, ...]
    source: str
    # The exception that ended each predecessor, where the launcher restarted the rank, with the attempt's number.
    attempts: tuple[tuple[int, dict[str, Any]], ...] = ()
    damaged: tuple[str, ...] = ()  # documents that are not whole: what they would have said is not "nothing"

    @property
    def last_capture(self) -> CaptureEvidence | None:
        return self.captures[-1] if self.captures else None


@dataclass(frozen=True, kw_only=True)
class CellEvidence:
    """One cell: its ranks, and what the agent saw of the whole."""

    path: Path
    world_size: int
    ranks: tuple[RankEvidence, ...]
    watch: dict[str, Any]
    launcher_stderr: str
    processes: tuple[CaptureEvidence, ...]  # where no rank ever appeared
    gaps: tuple[str, ...]
    oom: tuple[dict[str, Any], ...] = ()  # what each node's kernel says of processes ended for want of memory
    unnamed: tuple[dict[str, Any], ...] = ()  # exceptions of processes that had not said which rank they are
    sources: dict[str, str] = field(default_factory=dict)  # text of the user's files, by the path in frames
    parity: dict[str, Any] = field(default_factory=dict)  # how it compares with its control, in a matrix
    # Where there are very many ranks: all of them, those of one kind together, of which `ranks` holds some.
    kinds: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def _shown(self) -> frozenset[int]:
        return frozenset(rank.rank for rank in self.ranks)

    @cached_property
    def present(self) -> frozenset[int]:
        """Ranks that left evidence, looked at or not."""
        return self._shown.union(*self.kinds)

    @cached_property
    def absent(self) -> frozenset[int]:
        """Ranks that left none."""
        return frozenset(range(self.world_size)) - self.present

    @cached_property
    def met(self) -> frozenset[int]:
        """Ranks that detectors can speak of: those that are looked at, and those that left nothing."""
        return self._shown | self.absent

    def everyone(self, ranks: Iterable[int], but: Iterable[int] = ()) -> tuple[int, ...]:
        """These, and where they are all that is looked at of their kind, besides those in `but`, the whole kind."""
        found, but = set(ranks), set(but)
        for kind in self.kinds:
            looked_at = self._shown.intersection(kind) - but
            if looked_at and looked_at <= found:
                found.update(set(kind) - but)
        return tuple(sorted(found))

    def weight(self, rank: int) -> float:
        """For how many ranks it stands, where what most do is right."""
        kind = next((kind for kind in self.kinds if rank in kind), (rank,))
        return len(kind) / max(len(self._shown.intersection(kind)), 1)

    def names(self, ranks: Iterable[int]) -> str:
        """`1, 5`, or `0-6, 8-1023`: everyone for whom these stand, for a sentence."""
        found = self.everyone(ranks)
        return ", ".join(map(str, found)) if len(found) <= FEW_NAMES else spans(found)

    def rank(self, number: int) -> RankEvidence:
        """Raises KeyError if that rank left nothing."""
        for rank in self.ranks:
            if rank.rank == number:
                return rank
        raise KeyError(number)

    @property
    def stopped(self) -> str | None:
        """Why the agent ended the job: hang, timeout, interrupt; None if it ended by itself."""
        return self.watch.get("stopped")

    @property
    def attached(self) -> bool:
        """Whether the job was looked at while it ran, and neither started nor ended by us."""
        return bool(self.watch.get("attached"))

    @property
    def launcher_exit_code(self) -> int | None:
        return self.watch.get("launcher_exit_code")

    @property
    def started_mono_ns(self) -> int:
        return int(self.watch.get("started_mono_ns", 0))


def load_cell(path: Path) -> CellEvidence:
    """Reads the directory; of very many ranks those that matter. Never raises on what is missing inside it."""
    from nsadiag.analysis.digests.chosen import chosen_in

    run = RunDir(path=path)
    chosen = chosen_in(run)
    launcher = _launcher_stderr(run)
    ranks = load_ranks(run, chosen.ranks, launcher)
    declared = max((int(r.meta.get("world_size", 1)) for r in ranks), default=0)
    told = read_json(run.run, {})
    cell = CellEvidence(
        path=path,
        world_size=max(declared, chosen.world_size),
        ranks=ranks,
        kinds=chosen.kinds,
        watch=read_json(run.watch, {}),
        launcher_stderr=launcher,
        processes=tuple(
            _load_capture(CaptureDir(path=p), path)
            for p in sorted(path.glob("nodes/*/processes/*/captures/*"))
        ),
        gaps=(
            *chosen.gaps,
            *(read_json(run.watch, {}).get("gaps") or []),
            *(told.get("gaps", []) if isinstance(told, dict) else []),
            *_node_gaps(path),
        ),
        oom=tuple(read_json(p, {}) for p in sorted(path.glob(f"nodes/*/{OOM}"))),
        unnamed=tuple(read_json_lines(run.unnamed)),
        sources=read_sources(run),
        parity=read_json(run.parity, {}),
    )
    absent = sorted(cell.absent)
    few = [f"rank {n} left no evidence" for n in absent] if len(absent) <= FEW_NAMES else []
    many = [f"ranks {spans(absent)} left no evidence"] if absent and not few else []
    return replace(cell, gaps=(*few, *many, *cell.gaps))


def load_ranks(run: RunDir, ranks: Iterable[int], launcher: str | None = None) -> tuple[RankEvidence, ...]:
    """Those of them that left anything, in order."""
    return tuple(each_rank(run, ranks, launcher))


def each_rank(
    run: RunDir, ranks: Iterable[int], launcher: str | None = None, ends: dict[str, Any] | None = None
) -> Iterator[RankEvidence]:
    """The same one by one, where all of them together would be too much."""
    ends = read_json(run.ends, {}) if ends is None else ends
    launcher = _launcher_stderr(run) if launcher is None else launcher
    nodes = Nodes(run)
    for directory in (run.rank(rank) for rank in sorted(ranks)):
        if directory.path.is_dir():
            host = str(read_json(directory.meta, {}).get("host"))
            words = nodes.launcher_stderr(host, launcher)
            rank = _load_rank(directory, run.path, ends.get(str(directory.rank), {}), words)
            offset_ns = nodes.offset_ns(host)
            yield in_time_of_node_0(rank, offset_ns) if offset_ns else rank


class Nodes:
    """What the nodes of a job on several say about all of their ranks, each read when it is asked for."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._clocks: dict[str, Any] = {}
        self._said: dict[str, str] = {}

    def offset_ns(self, host: str) -> int:
        """What to add to that node's monotonic clock to get node 0's."""
        if host not in self._clocks:
            self._clocks[host] = read_json(self._run.node(host) / CLOCK)
        told = self._clocks[host]
        found = told.get("mono_offset_ns") if isinstance(told, dict) else None
        return found if isinstance(found, int) else 0

    def launcher_stderr(self, host: str, of_all: str) -> str:
        """What the launcher there said: a pid that another one names is not the same process."""
        if host not in self._said:
            path = self._run.node(host) / "launcher.stderr.log"
            self._said[host] = _tail(path) if path.exists() else of_all
        return self._said[host]


def in_time_of_node_0(rank: RankEvidence, offset_ns: int) -> RankEvidence:
    """The same, with all its monotonic times as node 0's clock would have shown them."""
    recording = rank.recording
    events = recording.events.copy()
    events["t_ns"] += offset_ns
    header = recording.header
    if header is not None:
        header = replace(header, monotonic_ns=header.monotonic_ns + offset_ns)
    return replace(
        rank,
        recording=replace(recording, header=header, events=events),
        exception=_shifted(rank.exception, offset_ns) if rank.exception else rank.exception,
        leaving=_shifted(rank.leaving, offset_ns) if rank.leaving else rank.leaving,
        raised=[_shifted(row, offset_ns) for row in rank.raised],
        signals=[_shifted(row, offset_ns) for row in rank.signals],
        samples=[_shifted(row, offset_ns) for row in rank.samples],
    )


def _shifted(row: Any, offset_ns: int) -> Any:
    if isinstance(row, dict) and isinstance(row.get("t_mono_ns"), int):
        return {**row, "t_mono_ns": row["t_mono_ns"] + offset_ns}
    return row


def _launcher_stderr(run: RunDir) -> str:
    return "".join(_tail(p) for p in sorted(run.path.glob("nodes/*/launcher.stderr.log")))


def _node_gaps(path: Path) -> list[str]:
    """What the last look at each machine could not have."""
    found = []
    for node in sorted(path.glob("nodes/*/captures")):
        last = max(node.iterdir(), default=None)
        rows = read_json(CaptureDir(path=last).gaps, []) if last else []
        found += [f"{node.parent.name}: {row['gap']}" for row in rows]
    return found


def _load_rank(directory: RankDir, root: Path, end: dict[str, Any], launcher: str) -> RankEvidence:
    faults = _tail(directory.faults)
    recording = read_blackbox(directory.blackbox, directory.names)
    captures = tuple(_load_capture(c, root) for c in directory.captures())
    damaged = _damaged(directory)
    told = tuple(f"rank {directory.rank}: {row.get('gap')}" for row in read_json_lines(directory.gaps))
    unread = tuple(f"rank {directory.rank}: {gap}" for gap in recording.gaps)
    leaving = read_json(directory.leaving)
    missed = tuple(f"rank {directory.rank}: {g['gap']}" for c in captures[-1:] for g in c.gaps)
    return RankEvidence(
        rank=directory.rank,
        meta=read_json(directory.meta, {}),
        recording=recording,
        exception=read_json(directory.exception),
        faults=faults,
        ddp=read_json(directory.ddp, []),
        graph=read_json(directory.graph, {}),
        recomputed=read_json_lines(directory.recomputed),
        recorded_gradients=read_json(directory.recorded_gradients),
        units=read_json(directory.units, []),
        loaders=read_json(directory.loaders, []),
        settings=read_json(directory.settings, {}),
        end=told_end(end, faults, launcher, leaving),
        leaving=leaving,
        raised=read_json_lines(directory.raised),
        signals=read_json_lines(directory.signals),
        wraps=read_json(directory.wraps, []),
        ungraded=read_json_lines(directory.ungraded),
        unwaited=read_json_lines(directory.unwaited),
        replicas=read_json_lines(directory.replicas),
        evaluated=read_json_lines(directory.evaluated),
        given=read_json_lines(directory.given),
        unheld=read_json_lines(directory.unheld),
        first_steps=read_json_lines(directory.parity),
        piles=read_json_lines(directory.piles),
        threads=read_json_lines(directory.threads),
        samples=read_json_lines(directory.samples),
        captures=captures,
        stderr_tail=_tail(directory.stderr),
        gaps=told + unread + missed + tuple(f"rank {directory.rank}: {name} is damaged" for name in damaged),
        attempts=tuple(_ends_of_attempts(directory)),
        damaged=damaged,
        source=str(directory.path.relative_to(root)),
    )


def _ends_of_attempts(directory: RankDir) -> Iterator[tuple[int, dict[str, Any]]]:
    for path in sorted((directory.path / "attempts").glob("[0-9]*/exception.json")):
        exception = read_json(path)
        if isinstance(exception, dict) and path.parent.name.isdigit():
            yield int(path.parent.name), exception


def rank_without_evidence(number: int) -> RankEvidence:
    """A rank that left nothing: for evidence that comes from elsewhere."""
    nowhere = RunDir(path=Path("/nonexistent")).rank(number)
    return replace(_load_rank(nowhere, nowhere.path, {}, ""), gaps=())


def _damaged(directory: RankDir) -> tuple[str, ...]:
    """Documents without their end: they are written in one step, so that only a copy can have lost it."""
    return tuple(p.name for p in sorted(directory.path.glob("*.json")) if not _is_whole(p))


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 2, 0))
            return file.read().strip()[-1:] in (b"}", b"]", b"l")  # also `null`
    except OSError:
        return False


def _load_capture(directory: CaptureDir, root: Path) -> CaptureEvidence:
    flight_recorder, unread = _flight_recorder(directory)
    return CaptureEvidence(
        number=directory.number,
        stacks=read_json(directory.py_spy, []),
        flight_recorder=flight_recorder,
        proc=read_json(directory.proc, {}),
        gaps=[*read_json(directory.gaps, []), *unread],
        source=str(directory.path.relative_to(root)),
        answers=read_json(directory.answers, {}),
        native=_tail(directory.native),
        tasks=tuple(read_json(directory.tasks, [])),
        ungraded=read_json(directory.ungraded, {}),
        children=tuple(_load_capture(child, root) for child in directory.children()),
    )


def _flight_recorder(directory: CaptureDir) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The JSON dump, else the pickle; and the gap, if there is a pickle that cannot be read."""
    document = read_json(directory.flight_recorder)
    if isinstance(document, dict):
        return document, []
    try:
        document = read_pickle(directory.flight_recorder_pickle)
    except OSError:
        return {}, []
    except PickleRefused as error:
        return {}, [{"capture": "fr_pickle", "gap": f"{directory.flight_recorder_pickle.name}: {error}"}]
    return (document, []) if isinstance(document, dict) else ({}, [])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LOG_TAIL_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

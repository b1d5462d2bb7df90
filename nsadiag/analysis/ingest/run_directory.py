"""Reads one run directory (or cell) into plain values; what is missing or broken becomes a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nsadiag.analysis.ingest.ends import completed_end
from nsadiag.analysis.ingest.ray import gaps_of, read_ray
from nsadiag.analysis.records import CaptureEvidence, CellEvidence, Chosen, RankEvidence
from nsadiag.evidence.documents import operations, training
from nsadiag.evidence.documents.captures import Answers, Gap, NcclStatus, Task
from nsadiag.evidence.documents.exceptions import Leaving, Raised, SentSignal
from nsadiag.evidence.documents.files import numbered, read_evidence, read_tail, tail_of
from nsadiag.evidence.documents.first_steps import ControlComparison, FirstStep
from nsadiag.evidence.documents.kernel import NO_PROCESS, OomReport
from nsadiag.evidence.documents.process import Meta
from nsadiag.evidence.documents.types import Gaps, fitting, read_rows, read_value
from nsadiag.evidence.documents.values import table_of
from nsadiag.evidence.documents.watch import NO_END, End, Watch
from nsadiag.evidence.layout import CLOCK, OOM, CaptureDir, RankDir, RunDir, read_json, read_json_lines
from nsadiag.evidence.pickles import PickleRefused, read_pickle
from nsadiag.evidence.recorder import Dump, settled
from nsadiag.evidence.rehearsal.confirmation import Confirmation
from nsadiag.evidence.rehearsal.paths import Named, read_path
from nsadiag.evidence.rehearsal.touches import Hold
from nsadiag.evidence.ring.reader import read_blackbox
from nsadiag.evidence.ring.turns import read_turns
from nsadiag.evidence.spans import FEW, spans
from nsadiag.evidence.stacks import process_in, stacks_in
from nsadiag.source.archive import read_sources

LOG_TAIL_BYTES = 64 * 1024
T = TypeVar("T")
Moment = TypeVar("Moment", Raised, SentSignal, training.Sample)
# What faulthandler says when a signal kills the process, and what torchrun says of a rank that it reaped before us.


def read_cell(path: Path, chosen: Chosen) -> CellEvidence:
    """Reads those of its ranks that were chosen. Never raises on what is missing inside the directory."""
    run = RunDir(path=path)
    launcher = _launcher_stderr(run)
    ranks = load_ranks(run, chosen.ranks, launcher)
    declared = max((r.meta.world_size for r in ranks), default=0)
    unfit: Gaps = []
    told, watch = read_json(run.run, {}, unfit), read_value(Watch, run.watch, unfit) or Watch()
    cell = CellEvidence(
        path=path,
        world_size=max(declared, chosen.world_size),
        ranks=ranks,
        kinds=chosen.kinds,
        watch=watch,
        launcher_stderr=launcher,
        processes=tuple(
            _load_capture(look, path, unfit)
            for p in sorted(path.glob("nodes/*/processes/*"))
            for look in RankDir(path=p).captures()
        ),
        gaps=(
            *chosen.gaps,
            *(watch.gaps or ()),
            *(told.get("gaps") or []),
            *_node_gaps(path, unfit),
        ),
        oom=tuple(
            read_value(OomReport, p, unfit) or OomReport() for p in sorted(path.glob(f"nodes/*/{OOM}"))
        ),
        nccl=_nccl(path, unfit),
        unnamed=read_rows(Raised, run.unnamed, unfit),
        sources=read_sources(run),
        parity=read_value(ControlComparison, run.parity, unfit) or ControlComparison(),
        confirmation=read_value(Confirmation, run.confirmation, unfit),
        order=read_value(Hold, run.order, unfit),
    )
    read_json(run.ends, {}, unfit)
    if ray := read_ray(run, unfit):
        # Its processes are watched by nobody: that they have no recorder is no gap.
        ranks = tuple(replace(rank, gaps=()) for rank in cell.ranks)
        return replace(cell, ray=ray, ranks=ranks, gaps=(*cell.gaps, *gaps_of(ray), *map(str, unfit)))
    absent = sorted(cell.absent)
    few = [f"rank {n} left no evidence" for n in absent] if len(absent) <= FEW else []
    many = [f"ranks {spans(absent)} left no evidence"] if absent and not few else []
    return replace(cell, gaps=(*few, *many, *cell.gaps, *map(str, unfit)))


def load_ranks(run: RunDir, ranks: Iterable[int], launcher: str | None = None) -> tuple[RankEvidence, ...]:
    """Those of them that left anything, in order."""
    return tuple(each_rank(run, ranks, launcher))


def each_rank(
    run: RunDir, ranks: Iterable[int], launcher: str | None = None, ends: Mapping[str, End] | None = None
) -> Iterator[RankEvidence]:
    """The same one by one, where all of them together would be too much."""
    ends = read_ends(run.ends) if ends is None else ends
    launcher = _launcher_stderr(run) if launcher is None else launcher
    nodes = Nodes(run)
    for directory in (run.rank(rank) for rank in sorted(ranks)):
        if directory.path.is_dir():
            host = str(read_json(directory.meta, {}).get("host"))
            words = nodes.launcher_stderr(host, launcher)
            rank = _load_rank(directory, run.path, ends.get(str(directory.rank), NO_END), words)
            offset_ns = nodes.offset_ns(host)
            yield in_time_of_node_0(rank, offset_ns) if offset_ns else rank


def read_ends(path: Path) -> dict[str, End]:
    """The ends of ranks, by their numbers; empty where nobody wrote it down."""
    return table_of(End, read_json(path, {}))


class Nodes:
    """Statements of a job's nodes about all of their ranks, each read when it is asked for."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._clocks: dict[str, Any] = {}
        self._said: dict[str, str] = {}

    def offset_ns(self, host: str) -> int:
        """The difference of node 0's monotonic clock and that node's."""
        if host not in self._clocks:
            self._clocks[host] = read_json(self._run.node(host) / CLOCK, {})
        told: dict[str, Any] = self._clocks[host]
        return int(told.get("mono_offset_ns") or 0)

    def launcher_stderr(self, host: str, of_all: str) -> str:
        """The launcher's own stderr there: a pid that another one names is not the same process."""
        if host not in self._said:
            path = self._run.node(host) / "launcher.stderr.log"
            try:
                self._said[host] = read_tail(path, LOG_TAIL_BYTES).decode(errors="replace")
            except OSError:
                self._said[host] = of_all
        return self._said[host]


def in_time_of_node_0(rank: RankEvidence, offset_ns: int) -> RankEvidence:
    """The same, with all its monotonic times as node 0's clock would have shown them."""
    recording = rank.recording
    events = recording.events.assign(t_ns=recording.events["t_ns"] + offset_ns)
    header = recording.header
    if header is not None:
        header = replace(header, monotonic_ns=header.monotonic_ns + offset_ns)
    return replace(
        rank,
        recording=replace(recording, header=header, events=events),
        exception=_shifted(rank.exception, offset_ns) if rank.exception else None,
        raised=tuple(_shifted(row, offset_ns) for row in rank.raised),
        signals=tuple(_shifted(row, offset_ns) for row in rank.signals),
        samples=tuple(_shifted(sample, offset_ns) for sample in rank.samples),
    )


def _shifted(row: Moment, offset_ns: int) -> Moment:
    return replace(row, t_mono_ns=row.t_mono_ns + offset_ns)


def _launcher_stderr(run: RunDir) -> str:
    return "".join(tail_of(p, LOG_TAIL_BYTES) for p in sorted(run.path.glob("nodes/*/launcher.stderr.log")))


def _nccl(path: Path, unfit: Gaps) -> tuple[NcclStatus, ...]:
    """The accounts that one node was given: each tells of the whole job."""
    for node in sorted(path.glob("nodes/*")):
        told = [read_value(NcclStatus, look.ras, unfit) for look in RankDir(path=node).captures()]
        if found := tuple(filter(None, told)):
            return found
    return ()


def _node_gaps(path: Path, unfit: Gaps) -> list[str]:
    """The gaps of the last snapshot of each machine."""
    found = []
    for node in sorted(path.glob("nodes/*")):
        for last in RankDir(path=node).captures()[-1:]:
            found += [f"{node.name}: {row['gap']}" for row in read_json(last.gaps, [], unfit)]
    return found


def _load_rank(directory: RankDir, root: Path, end: End, launcher: str) -> RankEvidence:
    unfit: Gaps = []
    of_snapshots: Gaps = []
    faults = tail_of(directory.faults, LOG_TAIL_BYTES)
    recording = read_blackbox(directory.blackbox)
    captures = tuple(_load_capture(c, root, of_snapshots) for c in directory.captures())
    told = read_json_lines(directory.gaps, unfit)
    leaving = read_value(Leaving, directory.leaving, unfit)
    missed = [gap for look in captures[-1:] for gap in look.gaps]
    rank = RankEvidence(
        rank=directory.rank,
        meta=read_value(Meta, directory.meta, unfit) or Meta(),
        recording=recording,
        exception=read_value(Raised, directory.exception, unfit),
        faults=faults,
        ddp=read_rows(training.WrappedModel, directory.ddp, unfit),
        graph=read_value(training.Graph, directory.graph, unfit),
        recomputed=read_rows(training.Recomputed, directory.recomputed, unfit),
        units=read_rows(training.Unit, directory.units, unfit),
        loaders=read_rows(training.Loader, directory.loaders, unfit),
        settings=read_value(training.Settings, directory.settings, unfit) or training.Settings(),
        end=completed_end(end, faults, launcher, leaving),
        leaving=leaving,
        raised=read_rows(Raised, directory.raised, unfit),
        signals=read_rows(SentSignal, directory.signals, unfit),
        wraps=read_rows(training.Wrap, directory.wraps, unfit),
        ungraded=read_rows(training.Missing, directory.ungraded, unfit),
        unwaited=read_rows(training.Unwaited, directory.unwaited, unfit),
        replicas=read_rows(training.Sums, directory.replicas, unfit),
        evaluated=read_rows(training.Sums, directory.evaluated, unfit),
        given=read_rows(training.ModelInput, directory.given, unfit),
        unheld=read_rows(training.Unheld, directory.unheld, unfit),
        observed=read_rows(operations.Observed, directory.invariants, unfit),
        first_steps=read_rows(FirstStep, directory.parity, unfit),
        piles=read_rows(training.Registered, directory.piles, unfit),
        threads=read_rows(training.StartedThread, directory.threads, unfit),
        samples=read_rows(training.Sample, directory.samples, unfit),
        captures=captures,
        stderr_tail=tail_of(directory.stderr, LOG_TAIL_BYTES),
        gaps=(),
        attempts=tuple(_ends_of_attempts(directory)),
        walked=_path(directory, read_path, unfit),
        turned=_path(directory, read_turns, unfit),
        source=str(directory.path.relative_to(root)),
    )
    cut = _cut(directory)
    # A rank claims its recorder before it writes anything else: where that is gone, a copy has lost it.
    lost = recording.is_damaged or (directory.settings.exists() and not directory.blackbox.exists())
    ring = (directory.blackbox.name,) if lost else ()
    gaps = [*(row["gap"] for row in told), *recording.gaps, *(row.gap for row in missed)]
    gaps += [f"{name} is damaged" for name in cut]
    gaps += [str(each) for each in (*of_snapshots, *unfit) if each.name not in cut]
    return replace(
        rank,
        gaps=tuple(f"rank {directory.rank}: {gap}" for gap in dict.fromkeys(gaps)),
        damaged=tuple(dict.fromkeys((*ring, *cut, *(u.name for u in unfit if u.name.endswith(".json"))))),
    )


def _path(directory: RankDir, read: Callable[[bytes, tuple[Named, ...]], T | None], unfit: Gaps) -> T | None:
    """The path that its code took in a rehearsal, or its turns in a job."""
    try:
        content = read_evidence(directory.path_words)
    except OSError:
        return None
    return read(content, read_rows(Named, directory.path_names, unfit))


def _ends_of_attempts(directory: RankDir) -> Iterator[tuple[int, Raised]]:
    for path in numbered(directory.path / "attempts"):
        exception = read_value(Raised, path / directory.exception.name)
        if exception is not None:
            yield int(path.name), exception


def rank_without_evidence(number: int) -> RankEvidence:
    """A rank that left nothing: for evidence that comes from elsewhere."""
    nowhere = RunDir(path=Path("/nonexistent")).rank(number)
    return replace(_load_rank(nowhere, nowhere.path, NO_END, ""), gaps=())


def _cut(directory: RankDir) -> tuple[str, ...]:
    """Documents without their end: they are written in one step, so that only a copy can have lost it."""
    return tuple(p.name for p in sorted(directory.path.glob("*.json")) if not _is_whole(p))


def _is_whole(path: Path) -> bool:
    try:
        return read_tail(path, 2).strip()[-1:] in (b"}", b"]", b"l")  # also `null`
    except OSError:
        return False


def _load_capture(directory: CaptureDir, root: Path, unfit: Gaps) -> CaptureEvidence:
    flight_recorder, unread = _flight_recorder(directory, unfit)
    return CaptureEvidence(
        number=directory.number,
        stacks=stacks_in(directory, unfit),
        flight_recorder=flight_recorder,
        proc=process_in(directory, unfit) or NO_PROCESS,
        gaps=(*read_rows(Gap, directory.gaps, unfit), *unread),
        source=str(directory.path.relative_to(root)),
        answers=read_value(Answers, directory.answers, unfit) or Answers(),
        native=tail_of(directory.native, LOG_TAIL_BYTES),
        tasks=read_rows(Task, directory.tasks, unfit),
        ungraded=read_value(training.MissingNow, directory.ungraded, unfit),
        children=tuple(_load_capture(child, root, unfit) for child in directory.children()),
    )


def _flight_recorder(directory: CaptureDir, unfit: Gaps) -> tuple[Dump, list[Gap]]:
    """The JSON dump, else the pickle; and the gap, if there is a pickle that cannot be read."""
    document = read_json(directory.flight_recorder, None, unfit)
    if document is not None:
        return settled(document), []
    try:
        document = read_pickle(directory.flight_recorder_pickle)
    except OSError:
        return {}, []
    except PickleRefused as error:
        return {}, [Gap(capture="fr_pickle", gap=f"{directory.flight_recorder_pickle.name}: {error}")]
    return settled(fitting(directory.flight_recorder.name, document, {}, unfit)), []

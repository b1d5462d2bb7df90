"""A run directory as plain values: a cell, its ranks, and the snapshots of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from nsadiag.evidence.documents import operations, training
from nsadiag.evidence.documents.actors import ActorWaits, RayJob
from nsadiag.evidence.documents.captures import Answers, Gap, NcclStatus, Task
from nsadiag.evidence.documents.exceptions import Leaving, Raised, SentSignal
from nsadiag.evidence.documents.first_steps import ControlComparison, FirstStep
from nsadiag.evidence.documents.kernel import KernelProcess, OomReport
from nsadiag.evidence.documents.process import Meta
from nsadiag.evidence.documents.python_stacks import NO_THREAD, PythonThread, StackFrame, Threads
from nsadiag.evidence.documents.watch import End, Watch
from nsadiag.evidence.messages import Fact
from nsadiag.evidence.recorder import Dump
from nsadiag.evidence.rehearsal.confirmation import Confirmation
from nsadiag.evidence.rehearsal.paths import Walked
from nsadiag.evidence.rehearsal.touches import Hold
from nsadiag.evidence.ring.reader import Recording
from nsadiag.evidence.ring.turns import Turns
from nsadiag.evidence.spans import rank_names
from nsadiag.source.model import SourceModel

AnyFact = TypeVar("AnyFact", bound=Fact)
NOT_COMPARED = ControlComparison()


@dataclass(frozen=True)
class Declined:
    """A fact that kept a rule from concluding, and the file that shows it, where one does."""

    fact: str
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaptureEvidence:
    """One snapshot of one rank."""

    number: int
    stacks: Threads
    flight_recorder: Dump
    proc: KernelProcess
    gaps: tuple[Gap, ...]
    source: str  # relative to the run directory
    answers: Answers = field(default_factory=Answers)
    native: str = ""  # py-spy's text, with the native frames among the Python ones
    tasks: tuple[Task, ...] = ()  # of the main thread's event loop, or of those of other threads
    ungraded: training.MissingNow | None = None  # parameters in DDP that had no gradient then
    children: tuple[CaptureEvidence, ...] = ()  # processes that the rank started; `number` is the pid

    @cached_property
    def main_thread(self) -> PythonThread:
        """The main thread; the first one where none is called that, and one without frames where there is none at all."""
        return next((t for t in self.stacks if t.is_main), self.stacks[0] if self.stacks else NO_THREAD)

    @property
    def main_frames(self) -> tuple[StackFrame, ...]:
        """The main thread's, innermost first."""
        return self.main_thread.frames

    @property
    def main_lines(self) -> list[tuple[str, int]]:
        """File and line of each of the main thread's frames."""
        return self.main_thread.lines

    @property
    def other_threads(self) -> list[PythonThread]:
        """The threads beside the main one."""
        return [thread for thread in self.stacks if thread is not self.main_thread]


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """Everything that one rank left behind."""

    rank: int
    meta: Meta
    recording: Recording
    exception: Raised | None
    faults: str
    ddp: tuple[training.WrappedModel, ...]
    graph: training.Graph | None
    # checkpointed functions that backward ran with other modules than forward
    recomputed: tuple[training.Recomputed, ...]
    units: tuple[training.Unit, ...]  # FSDP's
    loaders: tuple[training.Loader, ...]  # with the pids of their workers
    settings: training.Settings
    end: End
    leaving: Leaving | None  # where it called exit, if it did
    raised: tuple[Raised, ...]  # exceptions that did not end it
    signals: tuple[SentSignal, ...]  # that it sent
    wraps: tuple[training.Wrap, ...]  # models as they were handed to DDP or FSDP1
    # parameters that an optimizer found without a gradient, at each change
    ungraded: tuple[training.Missing, ...]
    unwaited: tuple[training.Unwaited, ...]  # asynchronous collectives that the user never waited for
    replicas: tuple[training.Sums, ...]  # sums of some parameters, now and then
    evaluated: tuple[training.Sums, ...]  # sums over models that it evaluated, now and then
    given: tuple[training.ModelInput, ...]  # sums over what the model was given, now and then
    unheld: tuple[training.Unheld, ...]  # parameters with gradients that are in no optimizer
    observed: tuple[operations.Observed, ...]  # operations of the first steps, and what they touched
    first_steps: tuple[FirstStep, ...]  # what the probe `parity` recorded of them, where it was asked for
    # what the user's lines have registered: hooks, handlers, groups of parameters
    piles: tuple[training.Registered, ...]
    threads: tuple[training.StartedThread, ...]  # started, that the interpreter waits for at its end
    samples: tuple[training.Sample, ...]  # innermost user line, now and then, while it ran
    captures: tuple[CaptureEvidence, ...]
    stderr_tail: str
    gaps: tuple[str, ...]
    source: str
    # The exception that ended each predecessor, where the launcher restarted the rank, with the attempt's number.
    attempts: tuple[tuple[int, Raised], ...] = ()
    damaged: tuple[
        str, ...
    ] = ()  # documents that are not whole, but those of snapshots: what they would have said is not "nothing"
    walked: Walked | None = None  # the path that its code took, of a rehearsal
    turned: Turns | None = None  # the turns that it took, of a job

    @property
    def last_capture(self) -> CaptureEvidence | None:
        return self.captures[-1] if self.captures else None

    @property
    def is_interrupted(self) -> bool:
        """Whether a SIGINT ended it by the exception that Python makes of one."""
        raised = self.exception
        return raised is not None and raised.in_main_thread and raised.type == "KeyboardInterrupt"


@dataclass(frozen=True, kw_only=True)
class CommunicatorInit:
    """One line of NCCL's log: a rank begins, or has ended, to create a communicator."""

    communicator: str
    size: int
    rank: int  # in the communicator
    complete: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class SummarisedWaits:
    """One rank's sums of DeepSpeed's summary of communication."""

    rank: int
    least_ms: float  # that its collectives took on the fastest rank
    more_ms: float  # that they took here: it was early, and waited
    source: str


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message of a log, and its line."""

    fact: Fact
    source: str


# What the stacks or dumps of a rank show of its movement: nothing, one snapshot, several at the same lines, several at other
# lines, or calls so young that a job which runs well looks the same.
Movement = Literal["unknown", "one", "same", "moved", "young"]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Evidence that other tools left, in place of what nsadiag records while it watches a job; what is not in it is unknown."""

    movement: Movement
    is_stuck: bool  # somebody waits in it, nobody has ended, and nothing shows that the job moved
    pending_s: float | None = (
        None  # for how long the first call had been pending when the evidence was written
    )
    launcher_log: str = ""  # the log that says how ranks ended
    started_by: str = (
        ""  # torchrun, slurm, kubernetes, ray, deepspeed, accelerate; empty where nothing shows it
    )
    absent_from_barrier: tuple[int, ...] = ()  # as a monitored barrier says
    barrier_log: str = ""
    communicators: tuple[CommunicatorInit, ...] = ()
    summarised: tuple[SummarisedWaits, ...] = ()
    blamed: tuple[int, str] | None = None  # the rank that the launcher calls the root cause, and where
    # That were read: by the name in sources, the path on this disk and the directory that links may not leave.
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # Logs that end before their end: who is silent in them may have written behind it.
    cut: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # of libraries, as lines say
    settings: Mapping[str, str] = field(default_factory=dict)  # variables of the environment, as lines say
    # Whether something says how many ranks there are: beyond the highest number that was heard of there may be more.
    knows_size: bool = False
    numbered: Mapping[int, int] = field(default_factory=dict)  # pids behind numbers that are no ranks
    said: tuple[Said, ...] = ()  # whatever else messages of logs say, in their order
    unread: tuple[Said, ...] = ()  # lines like errors that nothing understands, the most frequent of each log
    # The rank of each process whose number lines tell with it.
    pids: Mapping[int, int] = field(default_factory=dict)

    def of(self, kind: type[AnyFact]) -> list[tuple[AnyFact, str]]:
        """The messages of one kind, each with its source."""
        return [(each.fact, each.source) for each in self.said if isinstance(each.fact, kind)]

    def rank_of(self, fact: Fact) -> int | None:
        """The rank that a message is about, where any line tells it."""
        return fact.rank if fact.rank is not None else self.pids.get(fact.pid or -1)


@dataclass(frozen=True, kw_only=True)
class RayEvidence:
    """Evidence that `nsadiag attach` left of a job of Ray's, or of several launchers. Its processes have the numbers of ranks."""

    document: str = "ray.json"
    job: RayJob
    waited: Mapping[int, ActorWaits]  # by process, at the first capture
    waits: Mapping[int, ActorWaits]  # at the second


@dataclass(frozen=True, kw_only=True)
class CellEvidence:
    """One cell: its ranks, and what the agent saw of the whole."""

    path: Path
    world_size: int
    ranks: tuple[RankEvidence, ...]
    watch: Watch
    launcher_stderr: str
    processes: tuple[CaptureEvidence, ...]  # where no rank ever appeared
    gaps: tuple[str, ...]
    oom: tuple[OomReport, ...] = ()  # what each node's kernel says of processes ended for want of memory
    nccl: tuple[NcclStatus, ...] = ()  # of the whole job, one a snapshot
    unnamed: tuple[Raised, ...] = ()  # exceptions of processes that had not said which rank they are
    sources: dict[str, str] = field(default_factory=dict)  # text of the user's files, by the path in frames
    parity: ControlComparison = NOT_COMPARED
    # Where there are very many ranks: all of them, those of one kind together, of which `ranks` holds some.
    kinds: tuple[tuple[int, ...], ...] = ()
    collected: Collected | None = None  # by other tools; None where nsadiag recorded the job
    ray: RayEvidence | None = (
        None  # of a job of Ray's or of several launchers, which has processes in place of ranks
    )
    confirmation: Confirmation | None = None  # what a rehearsal of the same command recorded
    order: Hold | None = (
        None  # of what two ranks do to a file: the rehearsal's own; the other way round all calls agreed
    )

    @cached_property
    def code(self) -> SourceModel:
        """The user's files as syntax trees."""
        return SourceModel(self.sources)

    @cached_property
    def _shown(self) -> frozenset[int]:
        return frozenset(rank.rank for rank in self.ranks)

    @cached_property
    def present(self) -> frozenset[int]:
        """Ranks that left evidence, looked at or not."""
        return self._shown.union(*self.kinds)

    @cached_property
    def absent(self) -> frozenset[int]:
        """Ranks that left none; an actor without a process is none."""
        return frozenset() if self.ray else frozenset(range(self.world_size)) - self.present

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
        return rank_names(self.everyone(ranks))

    def rank(self, number: int) -> RankEvidence:
        """Raises KeyError if that rank left nothing."""
        for rank in self.ranks:
            if rank.rank == number:
                return rank
        raise KeyError(number)

    @property
    def stopped(self) -> str | None:
        """The reason for which the agent ended the job: hang, timeout, interrupt; None if it ended by itself.

        Of evidence that others collected: a hang where it shows a job that is stuck, since somebody has ended that, or will.
        """
        if self.collected is not None:
            return "hang" if self.collected.is_stuck else None
        return self.watch.stopped

    @property
    def attached(self) -> bool:
        """Whether the job was looked at while it ran, and neither started nor ended by us."""
        return self.watch.attached

    @property
    def launcher_exit_code(self) -> int | None:
        return self.watch.launcher_exit_code

    @property
    def started_mono_ns(self) -> int:
        return self.watch.started_mono_ns


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Ranks to read; where that is not all of them, the kinds that they stand for."""

    ranks: tuple[int, ...]
    kinds: tuple[tuple[int, ...], ...] = ()
    world_size: int = 0
    gaps: tuple[str, ...] = ()

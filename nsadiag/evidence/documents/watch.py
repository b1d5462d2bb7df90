"""The agent's record of a job: watch.json, and how each rank ended, ends.json."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.evidence.documents.values import Pid, Rank, Whole


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of one rank; without `t_s` it was left running."""

    pid: Pid | None = None
    t_s: float | None = None  # since the job was started
    exit_code: Whole | None = None  # missing where a signal ended it
    signal: Whole | None = None
    by_us: bool = False  # nsadiag ended it, or whoever ended a job that stood still
    clean: bool = False  # the interpreter reached its exit handlers
    steps: int | None = None  # of its optimizer
    iterations: int | None = None  # of its loop, where no optimizer of torch's stepped
    iterates_by: str | None = None  # the kind of event that an iteration begins with
    how: str = ""

    @property
    def ended_itself(self) -> bool:
        """Whether it ended, and not because nsadiag ended it."""
        return self.t_s is not None and not self.by_us


NO_END = End()


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop of Python in which samples of one snapshot found a thread."""

    file: str
    function: str
    line: int  # of the loop's own statement
    lines: tuple[int, ...]  # that were seen of it
    stacks: int  # different ones among the samples
    samples: int
    changes: tuple[str, ...] = ()  # variables with new values
    decided: bool = False  # the loop's end can be read off its variables
    seconds: float = 0.0  # since it was first seen like this
    hidden: bool = False  # it changes objects from within
    asks: tuple[str, ...] = ()  # variables that have a say in when it ends
    asks_in_vain_s: float = 0.0  # for how long none of these took a new value
    stays: tuple[
        str, ...
    ] = ()  # names and attributes that have a say in when it ends, as the rank itself tells
    stays_s: float = 0.0  # for how long none of these took a value that it had not had before
    constant: bool = False  # none of these had a second value
    text: str = ""  # the loop's own statement
    conditions: tuple[str, ...] = ()  # that would end it
    recurs: int = 0  # rounds, followed line by line, after which all that has a say was what it had been


@dataclass(frozen=True, kw_only=True)
class RankMotion:
    """One rank's activity between the two captures of a snapshot."""

    rank: Rank
    seconds: float = 0.0
    cpu_share: float = 0.0
    main_cpu_share: float | None = None
    child_cpu_share: float = 0.0
    frames_changed: bool = False
    functions_changed: bool = False
    io_bytes: Whole = 0
    grown_mib: float = 0.0
    stopped: bool = False
    did: str | None = None
    gpu_pct: float | None = None
    events: int = 0
    collectives: Whole = 0
    wakes_in_s: float | None = None
    helper_wakes_in_s: float | None = None
    limit_s: float | None = None
    outside: str | None = None
    outside_s: float = 0.0
    idle: str | None = None
    idle_s: float = 0.0
    silent_s: float = 0.0
    waits_for_peers: bool = False
    loop: Loop | None = None
    loop_cpu_share: float | None = None
    endless: bool = False

    @property
    def may_wake(self) -> bool:
        """Whether it sleeps, waits with a limit, or for the world: it may go on by itself."""
        return any((self.limit_s, self.wakes_in_s, self.helper_wakes_in_s, self.idle, self.outside))


@dataclass(frozen=True, kw_only=True)
class Look:
    """Two captures, by number, and what they showed."""

    judgement: str  # progress, busy, asleep, still or unobserved
    t_s: float  # of the second capture, since the job was started
    first: int
    second: int
    reason: str = ""  # in a sentence
    motions: tuple[RankMotion, ...] = ()

    def of(self, rank: int) -> RankMotion | None:
        """The motion of one rank."""
        return next((motion for motion in self.motions if motion.rank == rank), None)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A silence that was taken for a hang."""

    t_s: float = 0.0
    quiet_s: float = 0.0  # its length then
    says: str = ""  # in a sentence
    withdrawn_s: float | None = None  # when a rank moved again; missing where none did


@dataclass(frozen=True, kw_only=True)
class Node:
    """A host of the job."""

    node_rank: int = 0
    name: str = ""
    directory: str = ""
    shared: bool = False  # its directory is that of node 0
    lost_s: float | None = None  # when it was no longer heard
    ranks: tuple[Rank, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The whole watch; seconds are since the start of the job."""

    started_mono_ns: Whole = 0
    launcher_exit_code: Whole | None = None  # missing while it runs
    ended_s: float | None = None
    last_progress_s: float | None = None
    longest_quiet_s: float | None = None  # the longest pause of the whole job
    longest_start_quiet_s: float | None = None  # the longest one before the third step
    patience_s: float | None = None  # a suspected hang ends the job after such a silence
    stopped: str | None = (
        None  # why the agent ended the job: hang, timeout or interrupt; missing where it did not
    )
    ending_s: float | None = None  # when it began to end the job
    left_alive: tuple[int, ...] | None = None  # pids of processes that were left running
    looks: tuple[Look, ...] = ()  # snapshots
    suspicions: tuple[Suspicion, ...] = ()  # of a hang
    gaps: tuple[str, ...] | None = None  # what could not be observed
    nodes: tuple[Node, ...] = ()  # of a job on several
    attached: bool = False  # by `attach`

    @property
    def last_look(self) -> Look | None:
        """The newest one."""
        return self.looks[-1] if self.looks else None

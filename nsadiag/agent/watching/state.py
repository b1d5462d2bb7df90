"""The state of a watch: its options, each rank as seen from outside, and what closer looks and verdicts showed.

Options are made before the job starts, so that nothing that only a watch needs is imported for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from nsadiag.evidence.ring.blackbox import Kind, Phase

if TYPE_CHECKING:
    from nsadiag.agent.processes import End, Process
    from nsadiag.agent.stillness.judgement import Judgement
    from nsadiag.agent.stillness.motion import Stance
    from nsadiag.agent.watching.progress import Progress
    from nsadiag.agent.whereabouts import Whereabouts
    from nsadiag.evidence.layout import RankDir
    from nsadiag.evidence.records import Certainty

LOOKS_APART_S = 2.0
Stopped = Literal["hang", "timeout", "interrupt"]
OnHang = Literal["stop", "stop-proven", "leave"]
# Given all processes of a job, and the pids of its ranks by number; None where those of other roles have no say.
OnOthers: TypeAlias = "Callable[[set[Process], dict[int, int]], tuple[Judgement, str] | None]"


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Options of a watch. `stall_after_s` None means: learn it from the job's own rhythm."""

    stall_after_s: float | None = None
    expected_quiet_s: float = 0.0  # the longest pause that jobs like this one make; only makes more patient
    timeout_s: float = 0.0  # 0: none
    patience_s: float | None = None  # of silence, until a suspected hang is taken for one; None: learn it
    on_hang: OnHang = "stop"
    with_locals: bool = False  # values of local variables in the stacks
    looks_apart_s: float = LOOKS_APART_S
    thorough: bool = True  # of a job that is stuck, what costs a second or more a rank as well
    believes_world: bool = (
        True  # that what a rank waits for outside may still come (stillness.external_waits)
    )
    most_steps: int | None = None  # a job that gets further than this is ended, without a look


@dataclass(kw_only=True)
class RankState:
    """One rank as seen from outside; one that is not recorded shows no progress."""

    directory: RankDir
    pid: int
    process: Process | None
    progress: Progress | None
    end: End | None = None
    guessed: bool = False  # taken for this rank until it says who it is (worker.numbering)

    @property
    def steps(self) -> int:
        return self.progress.steps if self.progress else 0

    @property
    def iterations(self) -> int:
        return self.progress.iterations if self.progress else 0

    @property
    def said_goodbye(self) -> bool:
        """Whether the interpreter got as far as its exit handlers."""
        last = self.progress.pulse.last() if self.progress else None
        return last is not None and (int(last["kind"][0]), int(last["phase"][0])) == (Kind.PROCESS, Phase.END)


@dataclass(kw_only=True)
class Look:
    """A pair of captures and what it showed."""

    t_s: float
    first: int
    second: int
    judgement: Judgement
    reason: str
    motions: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two captures, by number, and what they say of each rank."""

    first: int
    second: int
    stances: list[Stance]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The verdict on a job in which nothing moves, given while it still runs."""

    certainty: Certainty
    says: str


@dataclass(kw_only=True)
class Suspicion:
    """A hang that is not proven: some rank could still continue by itself."""

    t_s: float  # since the start of the job
    quiet_s: float  # the silence until then
    says: str
    withdrawn_s: float | None = None  # when a rank moved again


class Notices(Protocol):
    """Messages for the person who waits for the job."""

    def looking(self, quiet_s: float) -> None:
        """Snapshots are about to be taken, in a silence of so many seconds."""

    def stopping(self, says: str) -> None:
        """A hang is taken for one, and the job is about to be ended; empty where there is no verdict yet."""

    def timed_out(self, timeout_s: float) -> None:
        """The job is about to be ended at its hard limit, and is not stuck."""

    def where(self, found: list[Whereabouts]) -> None:
        """The places of all ranks, as the job is interrupted."""

    def quiet(self, quiet_s: float, seen: str) -> None:
        """A look in a silence found no hang."""

    def suspected(self, suspicion: Suspicion, patience_s: float) -> None:
        """A hang is suspected; after so many seconds of silence it is taken for one."""

    def withdrawn(self, suspicion: Suspicion, pause_s: float) -> None:
        """A rank moved after all, after a pause of so many seconds."""

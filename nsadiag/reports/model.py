"""The content of a report: a run or a matrix of runs, read from disk, with its gaps named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nsadiag.evidence.phrases import together
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.rehearsal.calls import Rehearsal
from nsadiag.evidence.rehearsal.repair import Repair

if TYPE_CHECKING:
    from nsadiag.analysis.records import CellEvidence
    from nsadiag.reports.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """The end of one rank and its evidence."""

    rank: int
    exit_code: int | None = None
    signal: str | None = None
    t_s: float | None = None
    how: str | None = None
    by_us: bool = False  # nsadiag ended it
    captures: int = 0
    logs: tuple[str, ...] = ()
    last_words: str = ""

    @property
    def end(self) -> str:
        """`SIGKILL` or `exit 1`; empty if nothing is known."""
        if self.signal:
            return self.signal
        return "" if self.exit_code is None else f"exit {self.exit_code}"


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One run directory, or evidence that other tools left; everything but the directory may be unknown."""

    directory: Path  # to which the sources of evidence are relative
    name: str
    command: tuple[str, ...] = ()
    started_at: str | None = None
    ended_at: str | None = None
    duration_s: float | None = None
    host: str | None = None
    exit_code: int | None = None
    world_size: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    rehearsal: Rehearsal | None = None  # of a run that is one
    repair: Repair | None = None  # where `nsadiag fix` has tried one
    ranks: tuple[RankReport, ...] = ()
    gaps: tuple[str, ...] = ()
    code: str = ""  # the commit that ran, where that is known
    again: str = ""  # how often its failure came before, in words
    given: tuple[Path, ...] = ()  # the paths that were named, of what other tools left
    written: Path | None = None  # the directory of the verdict on them, where one was asked for
    # That evidence as it was read: to read it again may take a minute.
    collected: CellEvidence | None = field(default=None, repr=False, compare=False)

    @property
    def evidence(self) -> tuple[Path, ...]:
        """Whatever the verdict rests on."""
        return self.given or (self.directory,)

    @property
    def state(self) -> str:
        """The outcome, or `unknown` where no verdict could be read."""
        return self.verdict.outcome if self.verdict else "unknown"

    @property
    def without_verdict(self) -> str:
        """The words that stand in a verdict's place."""
        running = self.started_at and not self.ended_at
        return (
            "no verdict yet: the run has not ended, or was cut off" if running else "no verdict could be read"
        )

    @property
    def unseen(self) -> list[str]:
        """Its gaps and those of its verdict, for a person: ranks that have one alike stand together."""
        return together((*self.gaps, *(self.verdict.gaps if self.verdict else ())))


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The cost of one step of a cell; None where it was not measured."""

    step_s_median: float | None = None
    forward_s_median: float | None = None
    backward_s_median: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)  # of a mean step, in seconds, by name
    peak_rss_mib: float | None = None
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class CellReport:
    """One cell of a matrix, with the run that lies in its directory."""

    id: str
    factors: Mapping[str, str]
    state: str
    world_size: int | None
    wall_s: float | None
    launch: str | None
    costs: Costs
    run: RunReport

    @property
    def verdict(self) -> Verdict | None:
        return self.run.verdict

    @property
    def mark(self) -> str:
        """The cell's mark in the grid: the outcome, or its state without one."""
        if self.verdict:
            return self.verdict.outcome
        return "unknown" if self.state == "done" else self.state


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One factor that a matrix varies, with its values as labels."""

    name: str
    values: tuple[str, ...]
    base: str = ""  # where nothing else is said; empty: not known


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """Cells that failed in the same way: one thing to repair."""

    verdict: Verdict
    cells: tuple[CellReport, ...]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A hypothesis of the spec, and what the cells say to it."""

    text: str
    source: str
    status: str
    because: str
    confirmed_if: str = ""
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The cause of one kind of failure, in words; `command` runs the cells that would narrow it down."""

    cls: str
    status: str
    words: str
    cells: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class ParityRow:
    """A cell that should compute what its control computes."""

    cell: str
    control: str
    judgement: str  # same, differs, not comparable
    says: str
    steps: int | None = None
    parameters: int | None = None
    loss_difference: float | None = None
    worst: str = ""


@dataclass(frozen=True, kw_only=True)
class MatrixReport:
    """A matrix directory; `run` is what its own run.json says."""

    directory: Path
    name: str
    run: RunReport
    axes: tuple[Axis, ...]
    cells: tuple[CellReport, ...]
    wall_s: float | None = None
    machine: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    causes: tuple[Cause, ...] = ()
    parity: tuple[ParityRow, ...] = ()
    documents: Mapping[str, object] = field(default_factory=dict)  # the same as matrix.json has them
    scaling: Scaling | None = None

    @property
    def ranks_s(self) -> float:
        """The time of all ranks together: on GPUs, the time that they were held."""
        return sum((cell.wall_s or 0.0) * (cell.world_size or 1) for cell in self.cells)

    def verdict_on_claims(self) -> dict[str, int]:
        """The number of claims of each status, the settled ones first."""
        counts = {status: sum(c.status == status for c in self.claims) for status in STATUSES}
        return {status: n for status, n in counts.items() if n}

    def causes_of(self, group: FindingGroup) -> list[Cause]:
        """The known causes of these cells' failure."""
        failing = {cell.id for cell in group.cells}
        return [cause for cause in self.causes if failing & set(cause.cells)]

    def counts(self) -> dict[str, int]:
        """The number of cells with each mark, in order of first appearance."""
        counts: dict[str, int] = {}
        for cell in self.cells:
            counts[cell.mark] = counts.get(cell.mark, 0) + 1
        return counts

    def findings(self) -> list[FindingGroup]:
        """Unhealthy cells, those with the same signature together, the most frequent failure first."""
        groups: dict[str, list[CellReport]] = {}
        for cell in self.cells:
            if cell.verdict and cell.verdict.outcome != "healthy":
                groups.setdefault(cell.verdict.signature, []).append(cell)
        ordered = sorted(groups.values(), key=len, reverse=True)
        return [FindingGroup(verdict=c[0].verdict, cells=tuple(c)) for c in ordered if c[0].verdict]

    def unjudged(self) -> list[CellReport]:
        """Cells that ended and left no verdict that can be read."""
        return [cell for cell in self.cells if cell.state == "done" and cell.verdict is None]

    def failing_first(self) -> list[CellReport]:
        """Every cell, the unhealthy ones before the healthy, those before the ones not run."""
        return sorted(self.cells, key=lambda cell: _RANKING.get(cell.mark, 0))


STATUSES = ("confirmed", "depends", "refuted", "not settled", "not tested")
_RANKING = {"incomplete": 1, "unknown": 1, "healthy": 2, "running": 3, "pending": 4, "skipped": 5}

Report: TypeAlias = RunReport | MatrixReport

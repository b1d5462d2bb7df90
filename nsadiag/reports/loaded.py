"""A run or matrix directory as a value in Python: its verdict, its ranks, its recording as data frames, its page."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nsadiag.errors import UsageError
from nsadiag.evidence.phrases import count, these
from nsadiag.evidence.records import Verdict
from nsadiag.reports.load import cell_of, load_report
from nsadiag.reports.model import CellReport, MatrixReport, RankReport, Report

if TYPE_CHECKING:
    import pandas as pd

    from nsadiag.analysis.case import Case
    from nsadiag.evidence.table import Table


@dataclass(frozen=True)
class Facts:
    """Tables by name (docs/facts.md), each made when it is asked for."""

    _case: Case

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        from nsadiag.analysis.tables import TABLES

        return iter(TABLES)

    def __dir__(self) -> list[str]:
        return [*self]

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Raises KeyError where no table has that name, UsageError without pandas."""
        from nsadiag.analysis.tables import TABLES

        return _frame(TABLES[name].of(self._case))

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.startswith("_") or name not in [*self]:
            raise AttributeError(name)
        return self[name]

    def __repr__(self) -> str:
        return f"<nsadiag facts: {', '.join(self)}>"


@dataclass(frozen=True)
class Run:
    """A run as `nsadiag.load` returns it; in a notebook it shows its page."""

    report: Report

    @property
    def directory(self) -> Path:
        """The directory that was loaded."""
        return self.report.directory

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of a run; None where there is none yet. A matrix has one in each of its cells."""
        return None if isinstance(self.report, MatrixReport) else self.report.verdict

    @property
    def ranks(self) -> tuple[RankReport, ...]:
        """The ranks of a run, and how each ended."""
        return () if isinstance(self.report, MatrixReport) else self.report.ranks

    @property
    def cells(self) -> tuple[CellReport, ...]:
        """The cells of a matrix."""
        return self.report.cells if isinstance(self.report, MatrixReport) else ()

    @cached_property
    def _case(self) -> Case:
        if isinstance(self.report, MatrixReport):
            raise UsageError(
                f"{self.directory} is a matrix", "load one of its cells: nsadiag.load(DIR / 'cells' / ID)"
            )
        from nsadiag.analysis.tables import case_in

        return case_in(cell_of(self.report))

    @property
    def events(self) -> pd.DataFrame:
        """The recorded events of all ranks: one row an event, seconds since the start. Raises UsageError for a matrix."""
        return _frame(self._case.events)

    @property
    def steps(self) -> pd.DataFrame:
        """The steps of all ranks: one row a step, with its phases in seconds. Raises UsageError for a matrix."""
        return _frame(self._case.steps)

    @property
    def parts(self) -> pd.DataFrame:
        """The parts of each step: `compute_s`, `peers_s` (waiting for peers), `input_s`, `saving_s`, `rest_s`. Raises UsageError for a matrix."""
        return _frame(self._case.parts)

    @property
    def calls(self) -> pd.DataFrame:
        """The newest calls in each rank's flight recorder: one row a collective. Raises UsageError for a matrix."""
        return _frame(self._case.calls)

    @cached_property
    def facts(self) -> Facts:
        """The tables that rules read, as data frames: `run.facts.thread_states`. Raises UsageError for a matrix."""
        return Facts(self._case)

    def to_html(self) -> str:
        """The page: one file that needs no other."""
        from nsadiag.reports.formats.html import render_html

        return render_html(self.report)

    def to_markdown(self) -> str:
        """The report for a repository or an issue."""
        from nsadiag.reports.formats.markdown import render_markdown

        return render_markdown(self.report)

    def __str__(self) -> str:
        from nsadiag.reports.terminal.run import render_terminal

        return render_terminal(self.report)

    def __repr__(self) -> str:
        return f"<nsadiag.Run {self.directory}: {', '.join(self._outcome())}>"

    def _outcome(self) -> Iterator[str]:
        """The outcome, its class if that says more, and the guilty ranks."""
        verdict = self.verdict
        if verdict is None:
            yield f"{count(len(self.cells), 'cell')}" if self.cells else "no verdict yet"
            return
        yield verdict.outcome
        if verdict.cls != verdict.outcome:
            yield verdict.cls
        if verdict.guilty_ranks:
            yield these(verdict.guilty_ranks)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither its style nor the notebook's reaches the other."""
        return f'<iframe srcdoc="{html.escape(self.to_html())}" style="width:100%;height:40em;border:0" sandbox></iframe>'


def _frame(table: Table) -> pd.DataFrame:
    """The table as a data frame. Raises UsageError without pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise UsageError(
            "data frames need pandas, and it is not installed", "pip install 'nsadiag[run]'"
        ) from None
    frame: pd.DataFrame = pd.DataFrame({name: table[name].values for name in table.columns})
    return frame


def load(*paths: str | Path) -> Run:
    """The run or matrix in a directory that nsadiag wrote; or dumps, stacks and logs of other tools, in any number of files,
    folders and archives, judged here. Raises UsageError where there is none."""
    if not paths:
        raise UsageError("nothing to load", "nsadiag.load(PATH): a run directory, or files of other tools")
    return Run(load_report(*map(Path, paths)))

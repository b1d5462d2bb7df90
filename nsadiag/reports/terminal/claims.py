"""Claims, causes and parity on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsadiag.reports.model import Cause, MatrixReport
from nsadiag.reports.words import clean, one_line, status_mark


def claim_lines(matrix: MatrixReport) -> Iterator[RenderableType]:
    """The cells that compute something else, then every claim with its answer; empty where there are none."""
    differing = [row for row in matrix.parity if row.judgement == "differs"]
    if differing:
        yield Text()
        yield Text("Computes something else than its control", style="bold")
        for row in differing:
            yield _indented(Text(f"{clean(row.cell)}: {clean(row.says)}", overflow="fold"))
    if not matrix.claims:
        return
    yield Text()
    yield Text("Claims", style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for claim in matrix.claims:
        mark = status_mark(claim.status)
        source = f" ({clean(claim.source)})" if claim.source else ""
        table.add_row(
            Text(f"{mark.letter} {mark.word}", style=mark.style),
            Text.assemble(clean(claim.text), (source, "dim"), "\n", (one_line(claim.because), "dim")),
        )
    yield _indented(table)


def cause_lines(cause: Cause) -> Iterator[RenderableType]:
    """The causes of the failure, and the command that narrows them down."""
    yield _indented(Text(f"depends on: {clean(cause.words)}", overflow="fold"))
    if cause.command:
        # A command to copy: no line end goes into it.
        yield Text.assemble("  ", ("next: ", "dim"), one_line(cause.command), no_wrap=True)


def _indented(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, 2), expand=False)

"""Claims, causes and parity on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from nsadiag.printing import one_line
from nsadiag.reports.model import Cause, MatrixReport
from nsadiag.reports.terminal.hanging import labelled, paragraph
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import status_mark


def claim_lines(matrix: MatrixReport) -> Iterator[RenderableType]:
    """The cells that compute something else, then every claim with its answer; empty where there are none."""
    differing = [row for row in matrix.parity if row.judgement == "differs"]
    if differing:
        yield Text()
        yield Text("Computes something else than its control", style="bold")
        for row in differing:
            yield paragraph(Text(f"{row.cell}: {row.says}"))
    if not matrix.claims:
        return
    yield Text()
    yield Text("Claims", style="bold")
    rows = []
    for claim in matrix.claims:
        mark = status_mark(claim.status)
        source = f" ({claim.source})" if claim.source else ""
        because = one_line(claim.because)
        if claim.confirmed_if:
            because += f" (confirmed if {one_line(claim.confirmed_if)})"
        said = Text.assemble(claim.text, (source, "dim"), "\n", (because, "dim"))
        rows.append((Text(f"{mark.letter} {mark.word}", style=mark.style), said))
    yield from labelled(rows)


def cause_lines(cause: Cause) -> Iterator[RenderableType]:
    """The causes of the failure, and the command that narrows them down."""
    yield paragraph(Text(f"depends on: {cause.words}"))
    if cause.command:
        # A command to copy: no line end goes into it.
        yield Text.assemble("  ", ("next: ", "dim"), one_line(cause.command), no_wrap=True)

"""A matrix on a terminal: costs, the grid of verdicts, then what failed, nearest to the prompt."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsadiag.reports.facts import headline, place_text
from nsadiag.reports.grid import Grid, Slot, grid_of
from nsadiag.reports.model import CellReport, FindingGroup, MatrixReport
from nsadiag.reports.terminal.claims import cause_lines, claim_lines
from nsadiag.reports.terminal.hanging import paragraph
from nsadiag.reports.terminal.scaling import scaling_lines
from nsadiag.reports.words import clean, count, duration, in_order, mark_of, mebibytes, spent, tally

# Past this many rows a table is a document, and the report is a better place for it.
COST_ROWS_SHOWN = 48
WIDE = 110
CELLS_NAMED = 3


def matrix_lines(matrix: MatrixReport, console: Console) -> Iterator[RenderableType]:
    """The matrix from top to bottom, ready to print."""
    yield _title(matrix)
    for gap in matrix.gaps:
        yield Text(f"  gap: {clean(gap)}", style="yellow")
    if matrix.cells:
        yield Text()
        yield _costs(matrix, wide=console.width >= WIDE)
        yield from _rows_left_out(matrix)
        yield Text()
        yield _grid(grid_of(matrix))
        yield _legend(matrix)
    yield from _findings(matrix)
    yield from claim_lines(matrix)
    yield from scaling_lines(matrix.scaling)
    yield Text()
    yield _totals(matrix)
    yield _whereabouts(matrix)


def _title(matrix: MatrixReport) -> Text:
    title = Text(clean(matrix.name), style="bold")
    title.append(f"  {count(len(matrix.cells), 'cell')}: {tally(matrix.counts())}", style="not bold")
    fixed = ", ".join(f"{name}={value}" for name, value in grid_of(matrix).fixed)
    return title.append(f"  ({clean(fixed)} throughout)", style="dim") if fixed else title


def _costs(matrix: MatrixReport, *, wide: bool) -> Padding:
    grid = grid_of(matrix)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, header_style="bold")
    for name, _ in grid.labels_of(matrix.cells[0], matrix.axes):
        table.add_column(clean(name), overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("step", *(("forward", "backward") if wide else ()), "peak", "wall"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("start", no_wrap=True)
    for cell in matrix.failing_first()[:COST_ROWS_SHOWN]:
        table.add_row(*_cost_row(cell, grid.labels_of(cell, matrix.axes), wide=wide))
    return _indented(table)


def _cost_row(
    cell: CellReport, labels: tuple[tuple[str, str], ...], *, wide: bool
) -> Iterator[RenderableType]:
    # An id folds at its commas.
    yield from (Text(clean(value).replace(",", ", ")) for _, value in labels)
    mark = mark_of(cell.mark)
    yield Text(f"{mark.letter} {mark.word}", style=mark.style)
    yield duration(cell.costs.step_s_median)
    if wide:
        yield duration(cell.costs.forward_s_median)
        yield duration(cell.costs.backward_s_median)
    yield mebibytes(cell.costs.peak_rss_mib)
    # A cold cell's time has the imports in it, that of the others has not.
    yield duration(cell.wall_s) + (" cold" if cell.launch == "cold" and not wide else "")
    if wide:
        yield clean(cell.launch or "")


def _rows_left_out(matrix: MatrixReport) -> Iterator[Text]:
    more = len(matrix.cells) - COST_ROWS_SHOWN
    if more > 0:
        yield Text(f"  and {count(more, 'cell')} more in matrix.csv", style="dim")


def _grid(grid: Grid) -> Padding:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, header_style="bold")
    for name in grid.row_axes:
        table.add_column(clean(name), overflow="fold")
    for label in grid.columns:
        table.add_column(clean(label), justify="center", overflow="fold")
    previous: tuple[str, ...] = ()
    for row in grid.rows:
        table.add_row(*_row_labels(row.labels, previous), *(_letters(slot) for slot in row.slots))
        previous = row.labels
    return _indented(table)


def _row_labels(labels: tuple[str, ...], previous: tuple[str, ...]) -> list[Text]:
    """Labels, without those that only repeat the line above."""
    same = 0
    while same < len(labels) - 1 and labels[: same + 1] == previous[: same + 1]:
        same += 1
    return [Text("" if place < same else clean(label)) for place, label in enumerate(labels)]


def _letters(slot: Slot) -> Text:
    letters = Text()
    for cell in slot:
        mark = mark_of(cell.mark)
        letters.append(mark.letter, style=f"bold {mark.style}" if cell.mark != "healthy" else mark.style)
    return letters


def _legend(matrix: MatrixReport) -> Padding:
    """Only the letters in use: a legend longer than its picture explains nothing."""
    legend = Text()
    for mark in map(mark_of, in_order(matrix.counts())):
        legend.append(mark.letter, style=f"bold {mark.style}").append(f" {mark.word}   ", style="dim")
    return Padding(legend, (1, 0, 0, 2))


def _findings(matrix: MatrixReport) -> Iterator[RenderableType]:
    groups, unjudged = matrix.findings(), matrix.unjudged()
    if not groups and not unjudged:
        return
    yield Text()
    yield Text("Findings", style="bold")
    for group in groups:
        yield from _finding(matrix, group)
    for cell in unjudged:
        yield Text.assemble(("? no verdict", "bold cyan"), f"  {clean(cell.id)}")
        yield from (paragraph(Text(clean(gap))) for gap in cell.run.gaps)


def _finding(matrix: MatrixReport, group: FindingGroup) -> Iterator[RenderableType]:
    verdict = group.verdict
    mark = mark_of(verdict.outcome)
    yield Text(f"{mark.letter} {mark.word} {clean(headline(verdict))}", style=f"bold {mark.style}")
    yield paragraph(Text(clean(verdict.summary)))
    if verdict.where and verdict.where.file:
        yield paragraph(Text(f"at {clean(place_text(verdict.where))}"))
    if verdict.fix:
        yield paragraph(Text(f"fix: {clean(verdict.fix)}", style="green"))
    for cell in group.cells[:CELLS_NAMED]:
        yield paragraph(Text(f"in {clean(cell.id)}", style="dim"))
    more = len(group.cells) - CELLS_NAMED
    if more > 0:
        yield paragraph(Text(f"and {count(more, 'cell')} more like these", style="dim"))
    for cause in matrix.causes_of(group):
        yield from cause_lines(cause)


def _indented(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, 2), expand=False)


def _totals(matrix: MatrixReport) -> Text:
    counts = matrix.counts()
    failed = len(matrix.cells) - sum(
        counts.get(name, 0) for name in ("healthy", "pending", "skipped", "running")
    )
    cost = spent(matrix.wall_s, matrix.ranks_s)
    return Text(f"{tally(counts) or 'no cells'}{cost}", style="bold red" if failed else "bold green")


def _whereabouts(matrix: MatrixReport) -> Text:
    report = matrix.directory / "report.html"
    place = report if report.exists() else matrix.directory
    # A path to copy: no line end goes into it.
    return Text(f"report: {place}", style="dim", no_wrap=True)

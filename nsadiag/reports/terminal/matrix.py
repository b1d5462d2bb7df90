"""A matrix on a terminal: costs, the grid of verdicts, then what failed, nearest to the prompt."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from nsadiag.evidence.phrases import count
from nsadiag.reports.facts import headline, place_text
from nsadiag.reports.grid import Grid, Slot, grid_of
from nsadiag.reports.model import CellReport, FindingGroup, MatrixReport
from nsadiag.reports.terminal.claims import cause_lines, claim_lines
from nsadiag.reports.terminal.hanging import paragraph
from nsadiag.reports.terminal.scaling import scaling_lines
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import duration, in_order, mark_of, mebibytes, spent, tally

# Past this many rows a table is a document, and the report is a better place for it.
COST_ROWS_SHOWN = 48
# Of the table of costs, the most first.
COLUMNS = (
    ("step", "compute", "peers", "input", "peak", "wall", "start"),
    ("step", "compute", "peers", "peak", "wall"),
    ("step", "peak", "wall"),
    ("step", "wall"),
    ("step",),
)
UNBOUNDED = 10_000
CELLS_NAMED = 3


def matrix_lines(matrix: MatrixReport, console: Screen) -> Iterator[RenderableType]:
    """The matrix from top to bottom, ready to print."""
    yield _title(matrix)
    for gap in matrix.gaps:
        yield Text(f"  gap: {gap}", style="yellow")
    if matrix.cells:
        yield Text()
        yield _costs(matrix, console)
        yield from _rows_left_out(matrix)
        # Of one letter alone there is no pattern to see.
        if len(matrix.counts()) > 1:
            yield Text()
            yield from _grid(grid_of(matrix), console)
            yield _legend(matrix)
    yield from _findings(matrix)
    yield from claim_lines(matrix)
    yield from scaling_lines(matrix.scaling)
    yield Text()
    yield _totals(matrix)
    yield _whereabouts(matrix)


def _title(matrix: MatrixReport) -> Text:
    title = Text(matrix.name, style="bold")
    title.append(f"  {count(len(matrix.cells), 'cell')}: {tally(matrix.counts())}", style="not bold")
    fixed = ", ".join(f"{name}={value}" for name, value in grid_of(matrix).fixed)
    return title.append(f"  ({fixed} throughout)", style="dim") if fixed else title


def _costs(matrix: MatrixReport, console: Screen) -> Padding:
    """As many columns as fit the terminal; where the settings alone do not, they share a column and wrap at blanks."""
    # How cells were started says nothing where all were started alike.
    alike = len({cell.launch for cell in matrix.cells}) < 2
    for columns in [tuple(c for c in each if c != "start" or not alike) for each in COLUMNS]:
        if _fits(table := _cost_table(matrix, columns, together=False), console):
            return _indented(table)
    return _indented(_cost_table(matrix, COLUMNS[-1], together=True))


def _cost_table(matrix: MatrixReport, columns: tuple[str, ...], *, together: bool) -> Table:
    grid = grid_of(matrix)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, header_style="bold")
    for name in ["cell"] if together else [n for n, _ in grid.labels_of(matrix.cells[0], matrix.axes)]:
        table.add_column(name, no_wrap=not together, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="left" if name == "start" else "right", no_wrap=True)
    for cell in matrix.failing_first()[:COST_ROWS_SHOWN]:
        labels = grid.labels_of(cell, matrix.axes)
        # Where they share a column, a value without its name says nothing; an id has its names.
        named = [value if name == "cell" else f"{name}={value}" for name, value in labels]
        shown = (
            [", ".join(named).replace(",", ", ").replace(",  ", ", ")] if together else [v for _, v in labels]
        )
        mark = mark_of(cell.mark)
        costs = _costs_of(cell, with_start="start" in columns)
        table.add_row(
            *(Text(value) for value in shown),
            Text(f"{mark.letter} {mark.word}", style=mark.style),
            *(costs[name] for name in columns),
        )
    return table


def _fits(table: Table, console: Screen) -> bool:
    return (
        console.measure(table, options=console.options.update(width=UNBOUNDED)).maximum <= console.width - 2
    )


def _costs_of(cell: CellReport, *, with_start: bool) -> dict[str, str]:
    # A cold cell's time has the imports in it, that of the others has not.
    cold = " cold" if cell.launch == "cold" and not with_start else ""
    return {
        "step": duration(cell.costs.step_s_median),
        **{name: duration(cell.costs.parts.get(name)) for name in ("compute", "peers", "input")},
        "peak": mebibytes(cell.costs.peak_rss_mib),
        "wall": duration(cell.wall_s) + cold,
        "start": cell.launch or "",
    }


def _rows_left_out(matrix: MatrixReport) -> Iterator[Text]:
    more = len(matrix.cells) - COST_ROWS_SHOWN
    if more > 0:
        yield Text(f"  and {count(more, 'cell')} more in matrix.csv", style="dim")


def _grid(grid: Grid, console: Screen) -> Iterator[RenderableType]:
    """The letters of all cells; where its columns do not fit, the page has it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, header_style="bold")
    for name in grid.row_axes:
        table.add_column(name, no_wrap=True)
    for label in grid.columns:
        table.add_column(label, justify="center", no_wrap=True)
    previous: tuple[str, ...] = ()
    for row in grid.rows:
        table.add_row(*_row_labels(row.labels, previous), *(_letters(slot) for slot in row.slots))
        previous = row.labels
    if _fits(table, console):
        yield _indented(table)
    else:
        yield Text("  the grid of all cells needs a wider terminal; report.html has it", style="dim")


def _row_labels(labels: tuple[str, ...], previous: tuple[str, ...]) -> list[Text]:
    """Labels, without those that only repeat the line above."""
    same = 0
    while same < len(labels) - 1 and labels[: same + 1] == previous[: same + 1]:
        same += 1
    return [Text("" if place < same else label) for place, label in enumerate(labels)]


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
        yield Text.assemble(("? no verdict", "bold cyan"), f"  {cell.id}")
        yield from (paragraph(Text(gap)) for gap in cell.run.gaps)


def _finding(matrix: MatrixReport, group: FindingGroup) -> Iterator[RenderableType]:
    verdict = group.verdict
    mark = mark_of(verdict.outcome)
    yield Text(f"{mark.letter} {mark.word} {headline(verdict)}", style=f"bold {mark.style}")
    yield paragraph(Text(verdict.summary))
    if verdict.where and verdict.where.file:
        yield paragraph(Text(f"at {place_text(verdict.where)}"))
    if verdict.fix:
        yield paragraph(Text(f"fix: {verdict.fix}", style="green"))
    for cell in group.cells[:CELLS_NAMED]:
        yield paragraph(Text(f"in {cell.id}", style="dim"))
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

"""`nsadiag diff`: two runs or two ranks side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.measure import Measurement
from rich.table import Table

from nsadiag.analysis.diff import Row, Side, compare, matters, side
from nsadiag.analysis.verdict import judge
from nsadiag.errors import EXIT_FINDING, EXIT_HEALTHY
from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.phrases import count
from nsadiag.reports.terminal.hanging import Hanging, labelled
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import value_text

if TYPE_CHECKING:
    from nsadiag.reports.cleaners.page import Page

LONGEST = 60  # of a value in a table


def rows_of(a: Path, b: Path) -> list[Row]:
    """The comparison, row by row. Raises UsageError if either side is no run, cell or rank."""
    return compare(_side(a), _side(b))


def _side(path: Path) -> Side:
    """Judges evidence of other tools, which has no verdict beside it."""
    found = side(path)
    if found.cell.collected is None:
        return found
    return dataclasses.replace(found, judged=judge(found.cell).to_json())


def exit_code(rows: list[Row]) -> int:
    """1 if anything differs but the timing, as diff(1) has it."""
    return EXIT_FINDING if matters(rows) else EXIT_HEALTHY


def as_json(rows: list[Row], a: Path, b: Path) -> str:
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "a": str(a),
        "b": str(b),
        "differs": matters(rows),
        "rows": [row.to_json() for row in rows],
    }
    return json.dumps(document, indent=1)


def show(rows: list[Row], a: Path, b: Path, console: Screen, *, everything: bool) -> None:
    """A table of what differs, the timing always; what was compared and agrees is counted."""
    shown = [r for r in rows if everything or r.differs or r.section == "timing"]
    with console.capture() as capture:
        console.print(_title(rows), soft_wrap=True)
        console.print(Text(f"  a  {a}\n  b  {b}\n"), soft_wrap=True)
        for part in _parts(shown, console):
            console.print(part, crop=False, end="" if isinstance(part, Hanging) else "\n")
    console.write(capture.get())


def page_of(rows: list[Row], a: Path, b: Path) -> Page:
    """All of it as a page that needs no other file."""
    from nsadiag.reports.formats.diff_page import render_diff  # the analysis comes with its pictures

    return render_diff(rows, a, b, _summary(rows))


def _title(rows: list[Row]) -> Text:
    return Text(_summary(rows), style="bold" if matters(rows) else "bold green")


def _summary(rows: list[Row]) -> str:
    differing = [row for row in rows if row.differs and row.section != "timing"]
    if not differing:
        return f"No difference in {count(len(rows), 'thing')} compared"
    sections = ", ".join(dict.fromkeys(row.section for row in differing))
    agree = len(rows) - len(differing)
    return f"{count(len(differing), 'difference')}: {sections} ({agree} more compared)"


def _parts(rows: list[Row], console: Screen) -> Iterator[RenderableType]:
    """A table as far as values fit into one; the others below each other, whole: a path can be copied."""
    short = [row for row in rows if max(len(value_text(row.a)), len(value_text(row.b))) <= LONGEST]
    table = _table(short)
    if Measurement.get(console, console.options, table).maximum >= console.width:
        short = []
    if short:
        yield table
    for row in rows:
        if row not in short:
            style = "yellow" if row.differs else "dim"
            yield Hanging(Text(), Text.assemble((row.section, "bold"), "  ", row.name), indent=0)
            yield from labelled(
                [
                    (Text(side_), Text(value_text(value), style))
                    for side_, value in (("a", row.a), ("b", row.b))
                ]
            )


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("what", overflow="fold", min_width=24)
    for title in ("a", "b"):
        table.add_column(title, overflow="fold")
    table.add_column("b / a", justify="right")
    section = ""
    for row in rows:
        style = "yellow" if row.differs else "dim"
        table.add_row(
            Text(row.section if row.section != section else "", style="bold"),
            Text(row.name),
            Text(value_text(row.a), style=style),
            Text(value_text(row.b), style=style),
            Text(f"{row.ratio:.2f}" if row.ratio is not None else ""),
        )
        section = row.section
    return table

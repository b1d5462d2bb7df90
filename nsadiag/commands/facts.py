"""`nsadiag facts DIR [TABLE]`: the tables that rules read."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid

from nsadiag.analysis.external.inputs.listing import STDIN
from nsadiag.analysis.tables import TABLES, case_of, of_ranks, plain
from nsadiag.commands.analyze import check_one_job
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.phrases import count
from nsadiag.evidence.table import Table
from nsadiag.printing import one_line
from nsadiag.reports.cleaners.data import Csv, Json, csv_text, json_text
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text
from nsadiag.spec.strict import nearest

LIST = {"table": "its name", "rows": "number of rows", "holds": "what it holds"}
# Of a cell in the text: native frames of C++ templates fill thousands. The other formats have all.
MOST_COLUMNS = 100


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One table, or the list of all, with what each column means."""

    name: str | None
    columns: dict[str, str]
    rows: list[list[Any]]


def paths_and_table(words: Sequence[str]) -> tuple[list[Path], str | None]:
    """The last word is a table's name, unless it is the only one, or there is a file of that name."""
    last = words[-1]
    if len(words) == 1 or last == str(STDIN) or (last not in TABLES and Path(last).exists()):
        return list(map(Path, words)), None
    return list(map(Path, words[:-1])), last


def facts_of(paths: Sequence[Path], name: str | None, ranks: Collection[int]) -> Facts:
    """The table of that name, or the list of all. Raises UsageError where there is none, or no run."""
    if name is not None and name not in TABLES:
        raise UsageError(f"no table is called {name!r}", nearest(name, list(TABLES)))
    check_one_job(paths)
    case = case_of(*paths)

    def chosen(name: str) -> Table:
        table = TABLES[name].of(case)
        return of_ranks(table, TABLES[name].ranks, ranks) if ranks else table

    if name is None:
        rows = [[each, len(chosen(each)), table.says] for each, table in TABLES.items()]
        return Facts(name=None, columns=LIST, rows=rows)
    table = chosen(name)
    columns = [table[column].values for column in table.columns]
    rows = [[plain(value) for value in row] for row in zip(*columns, strict=True)]
    return Facts(name=name, columns=dict(TABLES[name].columns), rows=rows)


def as_json(found: Facts) -> Json:
    """The table with the meaning of its columns, rows as objects."""
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    document = {
        "schema_version": SCHEMA_VERSION,
        "table": found.name,
        "columns": found.columns,
        "rows": rows,
    }
    return json_text(document)


def as_csv(found: Facts) -> Csv:
    """A line of names, then one line a row; lists are JSON."""
    cells = ([json.dumps(each) if isinstance(each, list) else each for each in row] for row in found.rows)
    return csv_text([dict(zip(found.columns, row, strict=True)) for row in cells], [*found.columns])


def show(found: Facts, console: Screen, *, most: int) -> None:
    """The last rows on a terminal, each on one line; then what the columns mean."""
    shown = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    rows = found.rows[-most:] if most else found.rows
    # A column without a value in any row says nothing, and takes room from the others.
    used = [n for n, _ in enumerate(found.columns) if any(row[n] not in (None, "", []) for row in rows)]
    names = [*found.columns]
    for n in used:
        numbers = all(isinstance(row[n], int | float | None) for row in rows)
        shown.add_column(
            names[n],
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if numbers else "left",
            max_width=MOST_COLUMNS,
        )
    for row in rows:
        shown.add_row(*(Text(_cell(row[n])) for n in used))
    if rows:
        console.print(shown)
    if found.name is None:
        return
    number = count(len(found.rows), "row")
    console.print(f"{number}, of which the last {len(rows)} are shown: --rows 0 for all" if len(rows) < len(found.rows) else number)  # fmt: skip
    for name, says in found.columns.items():
        console.print(Text(f"  {name:14} {says}"), soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return one_line(", ".join(map(_cell, value)) if isinstance(value, list) else value)

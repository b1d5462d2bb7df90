"""The measurements of docs/lab: data that can be read, with the columns that its README names."""

from __future__ import annotations

import csv
import re
from datetime import date
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "docs" / "lab"
ROWS = dict(
    re.findall(r"^\| \[(\w+\.csv)\]\(\1\).*? \| (.*) \|$", (LAB / "README.md").read_text(), re.MULTILINE)
)
FILES = sorted(path.name for path in LAB.iterdir() if path.name != "README.md")
MEASURED = re.compile(r"(^|_)(ms|us|s|gb|gib|percent|ratio|right|runs)$|^(before|after|value|tokens)$")


def is_number(cell: str) -> bool:
    """Whether a cell is empty or holds a number."""
    return not cell or cell.replace(".", "").replace("-", "").isdigit()


def columns_named(name: str) -> list[str]:
    """The columns that all files begin with, and those in the README's row, without what stands in brackets behind them."""
    return ["date", "machine", "torch", *re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", ROWS[name]))]


def test_the_readme_names_each_file() -> None:
    assert sorted(ROWS) == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_columns_that_the_readme_names(name: str) -> None:
    with (LAB / name).open(newline="") as lines:
        header, *rows = csv.reader(lines)
    assert header == columns_named(name)
    assert rows
    assert {len(row) for row in rows} == {len(header)}
    assert all(date.fromisoformat(row[0]) for row in rows)


@pytest.mark.parametrize("name", FILES)
def test_a_column_named_for_its_unit_holds_numbers_alone(name: str) -> None:
    with (LAB / name).open(newline="") as lines:
        cells = [(column, cell) for row in csv.DictReader(lines) for column, cell in row.items()]
    strange = [(column, cell) for column, cell in cells if MEASURED.search(column) and not is_number(cell)]
    assert strange == []

"""Wrapped text on a terminal: sentences break at blanks, a path never."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from nsadiag.reports.terminal.hanging import Hanging, labelled, paragraph

PATH = "/job/site-packages/trainer/a_script_with_a_name_longer_than_the_line.py:45"


def shown(renderable: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(renderable, crop=False, end="")
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_a_path_is_left_whole_and_sentences_fit(width: int) -> None:
    lines = shown(Hanging(Text("at    "), Text(f"{PATH} in Logger.on_step_end, called by main")), width)
    assert sum(PATH in line for line in lines) == 1
    assert all(cell_len(line) <= max(width, 8 + len(PATH)) for line in lines)
    assert all(line == line.rstrip() and line.startswith("  ") for line in lines)


def test_labels_of_one_table_have_one_width() -> None:
    lines = [
        line
        for row in labelled([(Text("at"), Text("x")), (Text("guilty"), Text("y"))])
        for line in shown(row, 40)
    ]
    assert lines == ["  at      x", "  guilty  y"]


def test_wide_characters_count_twice() -> None:
    assert shown(paragraph(Text("漢字 漢字 漢字"), indent=0), 9) == ["漢字 漢字", "漢字"]

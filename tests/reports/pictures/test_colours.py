"""Source in colours: every character once, whatever the lexer makes of it."""

from __future__ import annotations

import pytest

from nsadiag.reports.pictures.colours import coloured, cut

SOURCE = '''@hook
def save(step):  # every rank
    """Over
    two lines."""
    if step == 10: print("a")'''


def test_each_line_has_its_pieces_and_a_string_goes_over_lines() -> None:
    lines = SOURCE.splitlines()
    found = coloured(lines)
    assert ["".join(text for _, text in pieces) for pieces in found] == lines
    assert ("c", "# every rank") in found[1] and ("f", "save") in found[1] and ("k", "if") in found[4]
    assert {kind for kind, text in found[3] if text.strip()} == {"s"}


@pytest.mark.parametrize(
    "text", ["", "\tif x:\x0b\x0c", "def (", "x = 'never closed", "é = 'ü'  # ß", "\u2028"]
)
def test_no_character_is_lost(text: str) -> None:
    lines = [text, "y = 1"]
    assert ["".join(part for _, part in pieces) for pieces in coloured(lines)] == lines


def test_a_long_line_is_cut() -> None:
    (pieces,) = coloured(["x = 'abcdef'"])
    assert "".join(text for _, text in cut(pieces, 6)) == "x = 'a"

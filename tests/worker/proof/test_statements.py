"""The names that lines give values to."""

from __future__ import annotations

from nsadiag.worker.proof.statements import Statements


def chosen(given: int, is_first: bool) -> int:
    made = given + 1
    made = -made if is_first else made
    first, second = made, given
    return first + second


def test_a_line_that_gives_a_name_the_value_that_it_has_is_known() -> None:
    trace = Statements(0, lambda: 0, lambda: True)
    first = chosen.__code__.co_firstlineno
    found = trace._assigned_at(chosen.__code__)
    assert {line - first: names for line, names in found.items()} == {
        1: {"made"},
        2: {"made"},
        3: {"first", "second"},
    }

"""Where the root of a collective was chosen, read off the source alone."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

from nsadiag.analysis.facts.locations import place
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.root_choice import chosen_at

FILE = "/home/u/train.py"
CALL = "dist.broadcast("

PICKED = """
    class Ring:
        def freshest(self):
            source, step = max(candidates, key=age)
            return source, step

        def restore(self):
            source, step = self.freshest()
            dist.broadcast(weights, {given})
"""
CASES = {
    "of several values": (PICKED.format(given="src=source"), "self.freshest()"),
    "without its name": (PICKED.format(given="source"), "self.freshest()"),
    "in the function itself": (
        "def f():\n    best = losses.index(min(losses))\n    dist.broadcast(w, src=best)",
        "best = ",
    ),
    "the call's own": ("dist.broadcast(w, src=0)", None),
    "a parameter": ("def f(best):\n    dist.broadcast(w, src=best)", None),
    "one of two": ("def f():\n    best = 0\n    best = pick()\n    dist.broadcast(w, src=best)", None),
    "counted on": ("def f():\n    best = 0\n    best += pick()\n    dist.broadcast(w, src=best)", None),
    "returned in two ways": (
        "def pick():\n    if fresh:\n        return 0\n    return 1\ndef f():\n    best = pick()\n    dist.broadcast(w, src=best)",
        "best = pick()",
    ),
}


@pytest.mark.parametrize(("source", "text"), CASES.values(), ids=CASES)
def test_a_root_is_followed_back_to_where_it_was_chosen(source: str, text: str | None) -> None:
    source = textwrap.dedent(source)
    lines = source.splitlines()
    cell: Any = SimpleNamespace(code=SourceModel({FILE: source}))
    line = next(n for n, each in enumerate(lines, 1) if CALL in each)
    found = chosen_at(cell.code, place(FILE, line, None))
    assert (found is None) == (text is None)
    assert found is None or (text and text in lines[found.line - 1])

"""Values behind what calls are given."""

from __future__ import annotations

from nsadiag.repair.templates.data import value_traced
from nsadiag.repair.text import Module


def test_a_value_is_traced_through_attributes_and_arguments() -> None:
    text = (
        "class Ends:\n    def __init__(self, model, first):\n        self.model, self.first = model, first\n\n"
        "    def run(self):\n        for job in self.jobs[self.first :]:\n            job()\n\n"
        "def main(model, rank):\n    first = rank % 3\n    Ends(model, first=first).run()\n"
    )
    first = next(value_traced.propose(Module(text, (6,))))
    assert "    first = value_of_rank_0(rank % 3)\n" in first.text

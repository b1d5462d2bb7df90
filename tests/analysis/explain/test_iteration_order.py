"""Ranks that take two groups in different orders: whose order is new, and what puts them in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.documents.sources import source_file
from support.events import events
from support.tables import case_of

from nsadiag.analysis.explain.candidates.iteration_order import order_of
from nsadiag.analysis.facts.locations import place
from nsadiag.analysis.relations.call_paths import conditions_around
from nsadiag.analysis.rules.desync.wait_cycles import in_conflict
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.control import Program

FILE = "/u/sync.py"
COLUMNS = ["rank", "t_s", "kind", "phase", "name", "step", "label"]


def case(*orders: str) -> Any:
    """One text a rank: the groups of its calls from one line, step by step; each step begins with a backward."""
    rows = []
    for rank, text in enumerate(orders):
        for step, groups in enumerate(text.split()):
            at = float(step)
            rows.append([rank, at, Kind.BACKWARD, Phase.BEGIN, "", step, f"\t{FILE}:9:main"])
            for n, group in enumerate(groups, 1):
                where = f"mesh_{group}\t{FILE}:5:reduce"
                rows.append([rank, at + n / 10, Kind.COLLECTIVE, Phase.BEGIN, "all_reduce", step, where])
    ranks = [SimpleNamespace(rank=rank) for rank in range(len(orders))]
    cell = SimpleNamespace(ranks=ranks, rank=lambda rank: ranks[rank])
    return case_of(cell, events=events(dict(zip(COLUMNS, row, strict=True)) for row in rows))


@pytest.mark.parametrize(
    ("orders", "guilty"),
    [
        # Most take one order, whatever was before.
        (("td dt d", "td dt t", "td td t", "td td t"), (0,)),
        # Of two equal sides, neither order is the one that is meant.
        (("d", "t", "t", "d"), (0, 1, 2, 3)),
    ],
)
def test_who_takes_the_less_common_order_is_guilty(
    monkeypatch: pytest.MonkeyPatch, orders: tuple[str, ...], guilty: tuple[int, ...]
) -> None:
    monkeypatch.setattr("nsadiag.analysis.rules.desync.wait_cycles.issued_s", lambda cell, rank: float("inf"))
    assert in_conflict(case(*orders), tuple(range(len(orders))))[0] == guilty


SOURCE = """
def reduce(bucket):
    dist.all_reduce(bucket.flat, group=bucket.group)  # STANDS

def exchange(buckets):
    for bucket in sorted(buckets, key=urgency):
        reduce(bucket)

for batch in loader:
    model(batch).backward()  # TRAINS
    exchange(buckets)
"""


def test_the_loop_that_puts_the_calls_in_order_is_named() -> None:
    lines = SOURCE.splitlines()

    def at(text: str, function: str | None) -> Any:
        return place(FILE, next(n for n, each in enumerate(lines, 1) if text in each), function)

    chain = (at("    exchange(", None), at("    reduce(", "exchange"), at("# STANDS", "reduce"))
    program = Program({FILE: source_file(FILE, SOURCE)})
    trains = at("# TRAINS", None).line
    situation: Any = SimpleNamespace(
        program=program,
        around=lambda path: conditions_around(program, path),
        call_paths=SimpleNamespace(now=lambda rank: chain if rank < 2 else chain[:2]),
        anchored_in=lambda loop: loop.line < trains <= loop.ends,
    )
    found = order_of(situation, (0, 1))
    assert found and lines[found.line - 1].strip() == "for bucket in sorted(buckets, key=urgency):"
    # Ranks at different lines are another matter.
    assert order_of(situation, (0, 1, 2)) is None

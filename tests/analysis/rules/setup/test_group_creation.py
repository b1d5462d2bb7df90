"""Groups that their members alone create: ranks that stand in different ones wait for each other for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.tables import table

from nsadiag.analysis.facts.collectives import CREATED_COLUMNS
from nsadiag.analysis.rules.setup.group_creation import at_odds, creation_cycles, local_creations


def case(*creations: str, doing: dict[int, str] | None = None) -> Any:
    """`0: 0,1` is rank 0 in the creation of the group of ranks 0 and 1; `0: 0,1.` is through with it; in their order."""
    rows = []
    for at, text in enumerate(creations):
        rank, ranks = text.split(": ")
        end = at + 100.0 if ranks.endswith(".") else None
        rows.append(
            [int(rank), at, "new_group", ranks.rstrip("."), True, "/u/links.py:8:link", float(at), end]
        )
    created = table(rows, columns=CREATED_COLUMNS)
    stands = {int(r): SimpleNamespace(doing=(doing or {}).get(int(r), "rendezvous")) for r in created["rank"]}
    return SimpleNamespace(created=created, thread_states=stands)


@pytest.mark.parametrize(
    ("creations", "cycles", "guilty"),
    [
        # Each begins with the group of its successor.
        (("0: 0,1", "1: 1,2", "2: 0,2"), [(0, 1, 2)], (0, 1, 2)),
        # Most have come to the one group, and rank 2 to the other.
        (("0: 0,1,2", "1: 0,1,2", "2: 0,2"), [(0, 2)], (2,)),
        # Rank 2 stands in another wait of its own: who waits for it may be freed.
        (("0: 0,1", "1: 1,2"), [], None),
        # A second thread of rank 1 is in the group that rank 0 waits for.
        (("0: 0,1", "1: 1,2", "1: 0,1", "2: 0,2"), [], None),
        # Rank 1 is through with it, and rank 0 will be.
        (("0: 0,1", "1: 0,1.", "1: 1,2", "2: 0,2"), [], None),
    ],
)
def test_ranks_that_create_groups_in_a_cycle_are_told(
    creations: tuple[str, ...], cycles: list[tuple[int, ...]], guilty: tuple[int, ...] | None
) -> None:
    created = local_creations(case(*creations))
    assert creation_cycles(created) == cycles
    if guilty:
        assert at_odds(created, cycles[0]) == guilty


def test_a_rank_whose_main_thread_is_elsewhere_waits_in_no_creation() -> None:
    found = local_creations(case("0: 0,1", "1: 1,2", "2: 0,2", doing={1: "collective"}))
    assert set(found) == {0, 2}
    assert creation_cycles(found) == []

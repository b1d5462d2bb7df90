"""Which ranks may be compared with each other, by what they send to each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from support.tables import table

from nsadiag.analysis.rules.performance.same_part import same_parts

Sends = Iterable[tuple[int, str, int]]  # rank, direction, peer: of each step


def case_of(ranks: int, sends: Sends, elements: int = 400) -> Any:
    told = ("rank", "op", "elements", "direction", "peer", "step")
    rows = [(rank, "isend", elements, to, peer, step) for step in range(4) for rank, to, peer in sends]
    steps = table([{"rank": rank, "step": step} for rank in range(ranks) for step in range(4)])
    transfers = [SimpleNamespace(**dict(zip(told, row, strict=True))) for row in rows]
    return SimpleNamespace(
        transfers=transfers, steps=steps, cell=SimpleNamespace(met=frozenset(range(ranks)))
    )


def chain(*stages: int) -> list[tuple[int, str, int]]:
    """Activations from each stage to the next."""
    links = itertools.pairwise(stages)
    return [each for a, b in links for each in ((a, "to", b), (b, "from", a))]


@pytest.mark.parametrize(
    ("ranks", "sends", "groups"),
    [
        (3, [], [{0, 1, 2}]),
        (2, chain(0, 1), [{0}, {1}]),
        (4, chain(0, 1, 2, 3), [{0}, {1}, {2}, {3}]),
        (4, chain(0, 2) + chain(1, 3), [{0, 1}, {2, 3}]),
        (3, [(r, way, (r + by) % 3) for r in range(3) for way, by in (("to", 1), ("from", 2))], [{0, 1, 2}]),
    ],
)
def test_stages_are_alike_across_pipelines_and_ranks_of_a_ring_all(
    ranks: int, sends: Sends, groups: list[set[int]]
) -> None:
    assert sorted(map(sorted, same_parts(case_of(ranks, sends)))) == sorted(map(sorted, groups))


def test_losses_that_are_sent_make_no_stages() -> None:
    assert same_parts(case_of(2, chain(0, 1), elements=1)) == (frozenset({0, 1}),)

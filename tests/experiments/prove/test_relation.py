"""What ranks hold, beside what one process holds."""

from __future__ import annotations

import numpy as np
import pytest

from nsadiag.experiments.prove.record import Array
from nsadiag.experiments.prove.relation import Relation, joined, relation

WHOLE = np.random.default_rng(0).normal(size=(8, 6))
FIRST, SECOND = WHOLE * 0.3, WHOLE * 0.7 + 0.0


@pytest.mark.parametrize(
    ("parts", "kind", "factor"),
    [
        ([WHOLE, WHOLE], "equal", 1),
        ([2 * WHOLE, 2 * WHOLE], "equal", 2),
        ([WHOLE[:4], WHOLE[4:]], "cut", 1),
        ([WHOLE[1::2], WHOLE[::2]], "cut", 1),
        ([2 * WHOLE[:, :3], 2 * WHOLE[:, 3:]], "cut", 2),
        ([WHOLE[:4], WHOLE[:4]], "other", 1),
        ([WHOLE[:4], WHOLE[3:7]], "other", 1),
        ([FIRST, SECOND], "partial", 1),
        ([WHOLE + 1, WHOLE - 1], "partial", 2),
        ([WHOLE + 1, WHOLE + 1], "other", 1),
        ([WHOLE[:4, :3], WHOLE[4:, 3:]], "unknown", 1),
    ],
)
def test_copies_cuts_and_parts_of_a_sum_are_told_apart(parts: list[Array], kind: str, factor: float) -> None:
    found = relation(parts, WHOLE)
    assert found.kind == kind and found.factor == pytest.approx(factor, rel=1e-6)


def test_pieces_of_a_batch_are_the_batch_in_whatever_turns_it_is_gone_through() -> None:
    ranks = [[WHOLE[0:2], WHOLE[2:4]], [WHOLE[4:6], WHOLE[6:8]]]
    assert joined(ranks, [WHOLE[:4], WHOLE[4:]]).kind == "cut"
    assert joined([ranks[0], ranks[0]], [WHOLE[:4], WHOLE[4:]]).kind == "other"


def test_a_sum_of_single_numbers_says_something_only_by_its_factor() -> None:
    assert Relation(kind="partial", factor=2).explains(2, 1) and Relation(kind="partial").explains(2, 1)
    assert not Relation(kind="partial", factor=1.3).explains(2, 1)
    assert Relation(kind="partial", factor=1.3).explains(2, 6)

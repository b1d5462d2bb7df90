"""Tokens of the values of a loop: equal for equal values, and no code of the user's runs for them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from nsadiag.worker.introspection.loop_values import SCALAR, Values, token_of


class Hostile:
    """A proxy that minds being asked anything."""

    def _asked(self, *_: Any) -> Any:
        raise AssertionError("code of the user's ran")

    __class__ = property(_asked)
    __getattr__ = __len__ = __iter__ = __bool__ = __repr__ = __hash__ = __eq__ = _asked


class Counted(numpy.ndarray):
    def tobytes(self, *_: Any) -> bytes:
        raise AssertionError("code of the user's ran")


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        lambda n: 10**5000 + n,  # of more digits than Python writes
        lambda n: "x" * 2000 + str(n),
        lambda n: [n, 2.5, None],
        lambda n: {"seen": {n, 7}},
        lambda n: torch.full((3, 2), n),
        lambda n: torch.tensor(float(n)),
        lambda n: numpy.full(4, n),
        range,
    ],
)
def test_equal_values_have_one_token_and_others_another(make: Any) -> None:
    assert token_of(make(3)) == token_of(make(3))
    assert token_of(make(3))[0] != token_of(make(4))[0]


def test_what_users_wrote_is_not_run() -> None:
    found = Values()
    for each in (Hostile(), numpy.zeros(3).view(Counted)):
        found.note("train.py:main", {"value": each, "listed": [each]})
    assert set(found.unseen["train.py:main"]) == {"value", "listed"}


def test_a_plain_value_is_marked_and_what_delivers_says_nothing() -> None:
    assert token_of(3)[0].startswith(SCALAR)
    token, unseen = token_of(iter([1, 2]))
    assert (token, unseen) == ("~", "builtins.list_iterator")

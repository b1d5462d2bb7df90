"""Values that ranks are given of rank 0: what the helper in a patch shares, and what it refuses to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nsadiag.repair.templates.data import value_of_rank_0
from nsadiag.repair.text import Module


@pytest.fixture
def shared() -> Iterator[Callable[[Any], Any]]:
    """The helper, in a group of one rank."""
    names: dict[str, Any] = {}
    exec(value_of_rank_0.HELPER, names)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield names[value_of_rank_0.NAME]
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "value", [3, "bfloat16", [0.5, None], {"a": (1, {2})}, torch.bfloat16, torch.device("cpu"), len]
)
def test_values_are_shared(shared: Callable[[Any], Any], value: object) -> None:
    assert shared(value) == value


class Ends:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def end(self) -> None: ...


@pytest.mark.parametrize(
    "make",
    [
        Ends,
        lambda model: [Ends(model).end],
        lambda model: model,
        lambda model: torch.optim.SGD(model.parameters()),
    ],
    ids=["object", "its methods", "model", "optimizer"],
)
def test_objects_of_a_rank_are_not_given_to_others(
    shared: Callable[[Any], Any], make: Callable[[torch.nn.Module], object]
) -> None:
    """A copy of rank 0's model would stay as it was while the rank's own is trained."""
    with pytest.raises(TypeError, match="is of no use here"):
        shared(make(torch.nn.Linear(2, 2)))


def test_a_tuple_without_parentheses_is_one_value() -> None:
    module = Module("def of(self, every, chief):\n    self.every, self.chief = every, chief\n", (2,))
    texts = [proposal.text.splitlines() for proposal in value_of_rank_0.propose(module)]
    assert [line for text in texts for line in text if "self.every" in line] == [
        f"    self.every, self.chief = {value_of_rank_0.NAME}((every, chief))"
    ]

"""The one line of a script that does what a verdict is about, read off the sources alone."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.gradient_cuts import constant_losses
from nsadiag.source.patterns.single_call import only_call, only_keyword, seeded_by_rank

FILE = "/home/u/train.py"
HELPER = "def seed_all(seed):\n    random.seed(seed)\n    torch.manual_seed(seed)\n"


def cell(source: str) -> Any:
    ast.parse(source)
    return SimpleNamespace(code=SourceModel({FILE: source}))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("torch.manual_seed(7 + rank)", 1),
        ("torch.manual_seed(7)", None),
        (HELPER + "seed_all(7 + dist.get_rank())", 4),
        (HELPER + "seed_all(seed=cfg.seed + rank)", 4),
        (HELPER + "seed_all(cfg.seed)", None),
        # Of two in one file, the first: a model is drawn before data are.
        (HELPER + "seed_all(7 + rank)\ntorch.manual_seed(rank)", 4),
        # It is given the rank, and seeds with something else.
        ("def start(rank):\n    torch.manual_seed(7)\nstart(rank)", None),
    ],
)
def test_the_line_that_seeds_by_rank_is_found_through_a_helper(source: str, line: int | None) -> None:
    found = seeded_by_rank(cell(source).code)
    assert (found.line if found else None) == line


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("fully_shard(model, ignored_params=routers)", 1),
        ("options = dict(mesh=mesh,\n    ignored_params=routers)\nfully_shard(model, **options)", 2),
        ("options = {'ignored_params': routers}", 1),
        ("fully_shard(model, ignored_params=None)", None),
        ("fully_shard(a, ignored_params=x)\nfully_shard(b, ignored_params=y)", None),
        ("fully_shard(model)", None),
    ],
)
def test_the_line_that_gives_an_argument_is_found_in_a_call_or_a_dict(source: str, line: int | None) -> None:
    found = only_keyword(cell(source).code, "ignored_params")
    assert (found.line if found else None) == line


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def loss(x):\n    return torch.zeros((), requires_grad=True)", [2]),
        ("loss = torch.tensor(0.0).requires_grad_()", [1]),
        ("loss = x.sum() * 0", []),
        ("loss = torch.tensor(0.0, requires_grad=False)", []),
        # What a module keeps is trained, and what is not made here is somebody else's.
        ("self.scale = torch.ones(3, requires_grad=True)", []),
        ("scale = nn.Parameter(torch.ones(3), requires_grad=True)", []),
        ("mixed = inputs.requires_grad_(True)", []),
    ],
)
def test_constants_that_ask_for_a_gradient_are_found(source: str, lines: list[int]) -> None:
    assert [found.line for found in constant_losses(cell(source).code)] == lines


def test_a_function_that_is_called_twice_has_no_one_line() -> None:
    found = only_call(cell("x = 1\nnn.fully_shard(model)").code, "fully_shard")
    assert found and found.line == 2
    assert only_call(cell("fully_shard(a)\nfully_shard(b)").code, "fully_shard") is None

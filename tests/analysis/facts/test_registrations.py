"""What is registered in step after step, and is not taken away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nsadiag.analysis.facts.registrations import largest_pile
from nsadiag.analysis.ingest.run_directory import rank_without_evidence
from nsadiag.evidence.documents.training import Registered
from nsadiag.evidence.documents.values import rows_of
from nsadiag.worker.probes.training.registrations import ROOM, _piles, piling

STEPS = 40


@pytest.fixture
def probe() -> Iterator[None]:
    with piling():
        yield


def piles() -> dict[str, tuple[int, int]]:
    """By kind: how many live, and how many were made."""
    return {kind: (pile.alive(), pile.made) for (kind, _), pile in _piles.items()}


@pytest.mark.usefixtures("probe")
def test_hooks_that_are_never_removed_live_as_long_as_what_they_hang_on() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model.register_forward_hook(lambda *_: None)
        model.weight.register_hook(lambda grad: grad)
        optimizer.register_step_post_hook(lambda *_: None)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    kinds = ("register_forward_hook", "register_hook", "register_step_post_hook", "add_param_group")
    assert piles() == dict.fromkeys(kinds, (STEPS, STEPS))
    (line,) = {place for kind, place in _piles if kind == "register_hook"}
    assert line.startswith(f"{__file__}:") and line.endswith(
        ":test_hooks_that_are_never_removed_live_as_long_as_what_they_hang_on"
    )


@pytest.mark.usefixtures("probe")
def test_hooks_that_are_removed_or_hang_on_what_a_step_throws_away_do_not_pile_up() -> None:
    model = torch.nn.Linear(2, 2)
    for _ in range(STEPS):
        handle = model.register_forward_pre_hook(lambda *_: None)
        out = model(torch.ones(1, 2))
        out.register_hook(lambda grad: grad)
        out.sum().backward()
        handle.remove()
    del out
    assert piles() == {"register_forward_pre_hook": (0, STEPS), "register_hook": (0, STEPS)}


@pytest.mark.usefixtures("probe")
def test_entries_that_are_dead_are_let_go_of_along_the_way() -> None:
    model = torch.nn.Linear(2, 2)
    for _ in range(1000):
        model.register_forward_hook(lambda *_: None).remove()
    (pile,) = _piles.values()
    assert (pile.made, len(pile._entries) <= ROOM + 1) == (1000, True)


@pytest.mark.usefixtures("probe")
def test_handlers_of_logging_pile_up_and_what_torch_registers_is_its_own() -> None:
    logger = logging.getLogger("test_piling")
    handlers = [logging.NullHandler() for _ in range(3)]
    for handler in handlers:
        logger.addHandler(handler)
    torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    assert piles() == {"addHandler": (3, 3)}
    logger.handlers.clear()


def row(step: int, alive: int, made: int, steps: int | None = None, line: int = 12) -> dict[str, Any]:
    return {
        "kind": "register_forward_hook", "place": f"/home/a/train.py:{line}:watch", "step": step,
        "steps": step + 1 if steps is None else steps, "alive": alive, "made": made,
    }  # fmt: skip


def with_rows(*rows: dict[str, Any]) -> Any:
    rank = rank_without_evidence(0)
    return type(rank)(**{**vars(rank), "piles": rows_of(Registered, rows)})


def test_the_pile_that_grew_most_along_all_steps_is_told_with_its_numbers() -> None:
    grown = [row(n, 12 * (n + 1), 12 * (n + 1)) for n in (0, 1, 3, 7, 15, 31, 59)]
    other = [row(n, n + 1, n + 1, line=20) for n in (0, 1, 3, 7, 15, 31, 59)]
    pile = largest_pile(with_rows(*other, *grown), 60)
    assert pile is not None and pile.told == (
        "forward hooks registered at train.py:12 in watch: 12 after step 1, 720 at step 60, none removed"
    )


@pytest.mark.parametrize(
    "rows",
    [
        [row(n, 12, 12 * (n + 1)) for n in (0, 1, 3, 7, 15, 31, 59)],  # removed again
        [row(0, 12, 12)],  # registered once
        [row(n, 12 * (n + 1), 12 * (n + 1)) for n in (0, 1, 3, 7)],  # at the beginning alone
        [],
    ],
)
def test_what_does_not_grow_along_is_no_pile(rows: list[dict[str, Any]]) -> None:
    assert largest_pile(with_rows(*rows), 60) is None

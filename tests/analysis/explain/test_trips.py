"""Rounds of a loop in which one rank did no step, told from what came of it later: black boxes and a source made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Did, Job, step

from nsadiag.evidence.ring.blackbox import Kind

SOURCE = """
    def crop(points):
        if len(points) < 256:
            raise ValueError("too few")
        return points

    def train_on(examples):
        model(crop(examples)).backward()  # TRAINS
        for p in model.parameters():
            dist.all_reduce(p.grad)

    def evaluate(epoch):
        dist.all_gather(scores, score)

    for number, batch in {over}:
        {step}
        if {test}:
            evaluate(number)
"""
TRY = """try:
            train_on(batch)
        except ValueError:
            {then}"""
TRAINS, REDUCES, GATHERS, CALLS = "# TRAINS", "all_reduce(p.grad)", "all_gather(scores", "  train_on(batch)"
EVALUATES = "evaluate(number)"


def trained(times: int) -> list[Did]:
    return [*step(TRAINS)[:2], (Kind.COLLECTIVE, "all_reduce", REDUCES), step(TRAINS)[2]] * times


def job(path: Path, text: str, rank0: list[Did], rank1: list[Did]) -> Job:
    """Rank 1 is at the evaluation, and rank 0 in the gradients of one step more than these."""
    made = Job(path, text)
    gather = (Kind.COLLECTIVE, "all_gather", GATHERS)
    made.rank(0, made.stack(REDUCES, CALLS, call="all_reduce"), *rank0, *trained(1)[:3])
    made.rank(1, made.stack(GATHERS, EVALUATES, call="all_gather"), *rank1, gather)
    return made


def source(then: str = "continue", *, test: str = "number % 3 == 0", over: str = "enumerate(batches)") -> str:
    return SOURCE.format(over=over, test=test, step=TRY.format(then=then))


EVALUATED: list[Did] = [(Kind.COLLECTIVE, "all_gather", GATHERS)]
TWICE = [*trained(3), *EVALUATED] * 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (source(), "except ValueError"),
        (source("skipped += 1"), "except ValueError"),
        (SOURCE.format(over="enumerate(batches)", test="number % 3 == 0", step="if fits(batch):\n            train_on(batch)"), "if fits(batch)"),
        (SOURCE.format(over="enumerate(batches)", test="number % 3 == 0", step="if not fits(batch):\n            continue\n        train_on(batch)"), "if not fits(batch)"),
        (SOURCE.format(over="enumerate(batches)", test="number % 3 == 0", step="with suppress(ValueError):\n            train_on(batch)"), "with suppress(ValueError)"),
    ],
)  # fmt: skip
def test_who_came_to_the_evaluation_after_fewer_steps_than_ever_did_a_round_without_one(
    tmp_path: Path, text: str, named: str
) -> None:
    made = job(tmp_path, text, [*TWICE, *trained(2)], [*TWICE, *trained(2)])
    found = made.parted()
    assert found and (found.cls, found.guilty) == ("data_divergent_control_flow", (1,))
    assert found.where and found.where.line == made.at(named)
    assert "after 2 steps instead of the usual 3" in found.because


@pytest.mark.parametrize(
    ("text", "earlier"),
    [
        # It came as late as ever: its peer has done a step too many.
        (source(), [*trained(2), *EVALUATED] * 2),
        # Visits that were irregular before.
        (source(), [*trained(3), *EVALUATED, *trained(2), *EVALUATED, *trained(4), *EVALUATED]),
        # An exception would have ended it.
        (source("raise RuntimeError(batch)"), TWICE),
        (source("break"), TWICE),
        # Two ways past the step.
        (source("continue").replace("try:", "if not fits(batch): continue\n        try:"), TWICE),
        # With nothing before, the loop may have begun elsewhere on one rank.
        (source(over="zip(range(start(), 9), batches)"), []),
        # Or the step stands in a function that is called outside the loop as well.
        (source() + "    train_on(probe)\n", []),
    ],
)
def test_what_else_may_be_so_is_left_alone(tmp_path: Path, text: str, earlier: list[Did]) -> None:
    made = Job(tmp_path, text)
    gather = (Kind.COLLECTIVE, "all_gather", GATHERS)
    made.rank(0, made.stack(REDUCES, CALLS, call="all_reduce"), *earlier, *trained(2), *trained(1)[:3])
    made.rank(1, made.stack(GATHERS, EVALUATES, call="all_gather"), *earlier, *trained(2), gather)
    found = made.parted()
    assert found is None or "without its step" not in found.because


def test_a_condition_that_data_decide_on_the_way_to_the_call_is_the_cause_itself(tmp_path: Path) -> None:
    found = job(tmp_path, source(test="score > best"), [*TWICE, *trained(2)], [*TWICE, *trained(2)]).parted()
    assert found and found.where and "score > best" in found.because

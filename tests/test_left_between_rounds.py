"""Nested loops that a rank has left together: which of them ended first is told by how often the training went round."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Did, Job, step

from nsadiag.evidence.ring.blackbox import Kind

SOURCE = """
    def update(samples, epochs={default}, tolerance=0.1):
        for _ in range({rounds}):
            drift = []
            for chunk in shuffled(samples).split(8):
                model(chunk).backward()
                drift.append(chunk.std().item())
            if sum(drift) > tolerance:
                break

    for cycle in range(50):
        update(explore(){given})
        dist.all_gather_object(seen, cycle)
    """
# What is called from within the loop and from outside of it tells nothing of who is where.
SHARED = """
    def rate(sample):
        return critic(sample)

    def explore():
        return [rate(sample) for sample in episodes()]
    """
TRAIN, MEET, CALL = "model(chunk)", "dist.all_gather_object", "update(explore("


@pytest.mark.parametrize(
    ("visits", "done", "named"),
    [
        ([12, 12], 8, "if sum(drift)"),  # two of three rounds of four
        ([12, 8, 12], 4, "if sum(drift)"),  # all left early by it before, together
        ([12, 12], 11, "for chunk in"),  # the last round was short
        ([12, 12], 9, "for chunk in"),  # each round was, by one
        ([12], 10, "for chunk in"),
        ([], 8, "for chunk in"),  # nothing says how long a round is
        ([12, 10], 8, "for chunk in"),  # nor here: the rounds are not alike
        ([13, 13], 8, "for chunk in"),
    ],
)
def test_who_left_after_whole_rounds_and_before_the_last_left_the_outer_loop_by_its_condition(
    tmp_path: Path, visits: list[int], done: int, named: str
) -> None:
    found = parted(tmp_path, visits, done, default="3", rounds="epochs", given="")
    by_condition = named == "if sum(drift)"
    assert found[:2] == ("data_divergent_control_flow" if by_condition else "uneven_inputs", (1,))
    # Whose data ended is shown where it went on to.
    assert not by_condition or found[2] == named


def test_a_helper_that_is_also_called_from_outside_tells_nothing(tmp_path: Path) -> None:
    source = SOURCE.replace("model(chunk)", "model(chunk, rate(chunk))")
    job = Job(tmp_path, SHARED + source.format(default="3", rounds="epochs", given=""))
    meet: Did = (Kind.COLLECTIVE, "all_gather_object", MEET)
    rates: Did = (Kind.FORWARD, "Critic", "return critic(sample)")
    train = "model(chunk, rate(chunk))"
    each = [rates, *step(train)]
    before = [*([rates, rates, *each * 12, meet] * 2), rates, rates, *each * 8]
    job.rank(0, job.stack(train, CALL, call="all_reduce"), *before, *each[:3])
    job.rank(1, job.stack(MEET, call="all_gather_object"), *before, meet)
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("data_divergent_control_flow", (1,))


@pytest.mark.parametrize(
    ("default", "rounds", "given", "cls"),
    [
        ("1", "3", "", "data_divergent_control_flow"),
        ("3", "epochs", ", epochs=3", "data_divergent_control_flow"),
        ("3", "epochs", ", epochs=6", "uneven_inputs"),  # either
        ("3", "len(samples)", "", "uneven_inputs"),
        ("2", "epochs", "", "uneven_inputs"),  # six and two: the last of two rounds was short
    ],
)
def test_the_rounds_are_known_where_one_number_is_all_that_they_may_be(
    tmp_path: Path, default: str, rounds: str, given: str, cls: str
) -> None:
    assert parted(tmp_path, [12, 12], 8, default=default, rounds=rounds, given=given)[0] == cls


def parted(
    path: Path, visits: list[int], done: int, *, default: str, rounds: str, given: str
) -> tuple[str, tuple[int, ...], str]:
    """Rank 1 did so many steps in the newest visit of the loops, after these earlier ones; rank 0 is in the next step."""
    job = Job(path, SOURCE.format(default=default, rounds=rounds, given=given))
    meet: Did = (Kind.COLLECTIVE, "all_gather_object", MEET)
    before = [did for visit in visits for did in (*step(TRAIN) * visit, meet)] + step(TRAIN) * done
    job.rank(0, job.stack(TRAIN, CALL, call="all_reduce"), *before, *step(TRAIN)[:2])
    job.rank(1, job.stack(MEET, call="all_gather_object"), *before, meet)
    found = job.parted()
    assert found and found.where
    line = job.script.read_text().splitlines()[(found.where.line or 0) - 1].strip()
    return found.cls, found.guilty, line.partition(" > ")[0]


@pytest.mark.parametrize("ran_out", [False, True])
def test_who_was_given_a_batch_and_left_with_it_has_not_run_out_of_data(
    tmp_path: Path, ran_out: bool
) -> None:
    job = Job(
        tmp_path,
        """
        for epoch in range(3):
            for batch in loader:
                if not batch.isfinite().all():
                    break
                model(batch).backward()
            dist.barrier()
        """,
    )
    train, asks = "model(batch)", "for batch in loader:"
    batch: list[Did] = [(Kind.DATA, "Clips", asks), *step(train)]
    job.rank(0, job.stack(train, call="all_reduce"), *batch * 2, *batch[:3])
    job.answers[asks] = ran_out
    left: list[Did] = [(Kind.DATA, "Clips", asks), (Kind.COLLECTIVE, "barrier", "dist.barrier")]
    job.rank(1, job.stack("dist.barrier", call="barrier"), *batch * 2, *left)
    found = job.parted()
    cls = "uneven_inputs" if ran_out else "data_divergent_control_flow"
    assert found and (found.cls, found.guilty) == (cls, (1,))

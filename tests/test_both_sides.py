"""A condition on the rank whose two branches call the same: it is not there that ranks part."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Job, step

from nsadiag.analysis.explain.candidate import Candidate

TRAIN, INNER, OUTER = ".backward()", "train(model, loader)  # timed", "train(model, loader)  # plain"

SCRIPT = """
    def record(status, loss):
        with status.lock:
            status.losses.append(loss)

    def train(model, loader):
        for batch in loader:
            model(batch).backward()
            record(status, batch)

    def main():
        if rank == 0:
            {first}
                train(model, loader)  # timed
        else:
            {second}
            train({given})  # plain

    main()  # all
"""


def parted(
    path: Path, first: str = "with Timer():", second: str = "pass", given: str = "model, loader"
) -> Candidate | None:
    """Rank 0 waits at a lock of its own, rank 1 for it in backward, after some steps that both made."""
    job = Job(path, SCRIPT.format(first=first, second=second, given=given))
    trained = [*step(TRAIN), *step(TRAIN), *step(TRAIN)]
    job.rank(0, job.stack("with status.lock", "record(status, batch)", "# timed", "main()  # all"), *trained)
    job.rank(1, job.stack(TRAIN, "# plain", "main()  # all", call="all_reduce"), *trained, *step(TRAIN)[:2])
    return job.parted()


def test_a_branch_both_sides_of_which_make_the_same_call_parts_nobody(tmp_path: Path) -> None:
    assert parted(tmp_path) is None


@pytest.mark.parametrize(
    "script",
    [
        {"given": "model, some(loader)"},
        {"first": "for loader in parts:"},  # once for each part
        {"first": "if validating:"},
        {"second": "loader = some(loader)"},
    ],
)
def test_it_may_where_the_call_is_another_or_not_made_as_often(
    tmp_path: Path, script: dict[str, str]
) -> None:
    found = parted(tmp_path, **script)
    assert found and found.cls == "rank_conditional_collective"

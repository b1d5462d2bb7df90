"""Of two ranks that parted, the one whose way had become rare on both: black boxes and a source made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Did, Job, step

from nsadiag.evidence.ring.blackbox import Kind

CACHE = """
    def stats(name, batch):
        if name in known:
            return known[name]
        dist.all_gather(parts, batch)
        return known.setdefault(name, merged(parts))

    def fit(batches):
        for name, batch in batches:
            model(batch).backward()
            stats(name, batch)

    fit(deal())
"""
SCALE = """
    def norm():
        dist.all_gather(parts, squares)

    def fit(batches):
        for batch in batches:
            model(batch).backward()
            if gradients.max() < LIMIT:
                norm()

    fit(deal())
"""
GATHER, TRAIN, MAIN = "all_gather(parts", ".backward()", "fit(deal())"


def guilty_of(path: Path, source: str, before: str) -> int:
    """Where rank 1 gathers and rank 0 went on; `before`: what both did, x for an iteration with a gather."""
    job = Job(path, source)
    gather = (Kind.COLLECTIVE, "all_gather", GATHER)
    done: list[Did] = []
    for each in before:
        done += [*step(TRAIN), *([gather] if each == "x" else [])]
    call = "        stats(name" if source is CACHE else "    norm()"
    inside = job.stack(GATHER, call, MAIN, call="all_gather")
    job.rank(0, job.stack(TRAIN, MAIN, call="all_reduce"), *done, *step(TRAIN), *step(TRAIN)[:2])
    job.rank(1, inside, *done, *step(TRAIN), gather)
    found = job.parted()
    assert found and found.cls == "data_divergent_control_flow" and found.where
    guilty = found.guilty[0]
    assert (found.where.line == job.at(GATHER)) == (guilty == 1)
    return guilty


@pytest.mark.parametrize(
    ("before", "guilty"),
    [
        # A cache that was filled while warming up: who asks for something new has left the usual way.
        ("xxx............", 1),
        ("x.x..........", 1),
        # What comes round at its own rhythm is due.
        ("....x....x....", 0),
        # Not long enough since.
        ("xxx....", 0),
        ("xx.x.xx.x.", 0),
    ],
)
def test_who_does_what_both_have_not_done_for_long_left_the_usual_way(
    tmp_path: Path, before: str, guilty: int
) -> None:
    assert guilty_of(tmp_path, CACHE, before) == guilty


@pytest.mark.parametrize(
    ("before", "guilty"),
    [
        # A step that is nearly always made: who leaves it out strayed.
        ("xxxxxxxx.xxxxxxx.xx", 0),
        # Neither way is rare.
        ("xx..xx..x.x.", 1),
        ("xx.x", 1),
    ],
)
def test_who_leaves_out_what_both_did_in_most_iterations_left_the_usual_way(
    tmp_path: Path, before: str, guilty: int
) -> None:
    assert guilty_of(tmp_path, SCALE, before) == guilty

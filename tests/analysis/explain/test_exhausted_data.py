"""Loaders whose data end at different times: what is compared, and what is not."""

from pathlib import Path

import pytest

from nsadiag.analysis.explain.candidates.exhausted_data import (
    Loader,
    LoaderAnswer,
    answers_in,
    first_that_differs,
    had_before,
    shared_loaders,
)
from nsadiag.analysis.relations.timeline import timeline_of
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

FIT = "/home/me/train.py:9:main"


def batches(number: int, *, ends: bool = True, dataset: str = "Clips", at: str = FIT) -> list[LoaderAnswer]:
    """What a loader says in one pass."""
    loader = Loader(dataset, at)
    return [LoaderAnswer(loader, False)] * number + [LoaderAnswer(loader, True)] * ends


def test_the_pass_in_which_the_data_end_first_on_one_rank_is_found_with_its_batches() -> None:
    validation = batches(2, dataset="Held")
    short = [*validation, *batches(7), *batches(5)]
    more = [*validation, *batches(7), *batches(6, ends=False)]
    at = first_that_differs([short, more])
    assert at == len(validation) + 8 + 5
    assert had_before(short, at) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (batches(5), batches(5)),
        (batches(5), batches(3, ends=False)),  # not come so far yet
        (batches(5), []),  # its ring has lost the beginning
        # One rank alone validates: from there on their questions are not the same.
        ([*batches(3, ends=False), *batches(2, dataset="Held"), *batches(2)], batches(6)),
    ],
    ids=["equal", "behind", "unknown", "other questions"],
)
def test_nothing_is_said_of_loaders_that_were_not_asked_alike(
    one: list[LoaderAnswer], other: list[LoaderAnswer]
) -> None:
    assert first_that_differs([one, other]) is None


def test_a_black_box_tells_the_end_of_the_data(tmp_path: Path) -> None:
    from nsadiag.analysis.load import load_cell

    run = RunDir(path=tmp_path / "run")
    rank = run.rank(0)
    make_private_dir(run.path)
    make_private_dir(rank.path)
    box = BlackBox(rank.blackbox, rank=0, world_size=1)
    names = box.names
    for ran_out in (0, 1):
        box.emit(Kind.DATA, Phase.BEGIN, names("Clips"), 0, 0, names(f"\t{FIT}"))
        box.emit(Kind.DATA, Phase.END, names("Clips"), 0, ran_out)
    assert answers_in(timeline_of(load_cell(run.path).rank(0))) == batches(1)


def test_a_loader_that_each_rank_goes_through_by_itself_parts_nobody(tmp_path: Path) -> None:
    from nsadiag.analysis.load import load_cell

    run = RunDir(path=tmp_path / "run")
    rank = run.rank(0)
    make_private_dir(run.path)
    make_private_dir(rank.path)
    box = BlackBox(rank.blackbox, rank=0, world_size=2)
    names = box.names

    def batch(dataset: str, forward: str, *, trains: bool = False) -> None:
        box.emit(Kind.DATA, Phase.BEGIN, names(dataset), 0, 0, names(f"\t{FIT}"))
        box.emit(Kind.DATA, Phase.END, names(dataset), 0, 0)
        box.emit(Kind.FORWARD, Phase.BEGIN, names(forward), 0, 0, names(f"\t{FIT}"))
        if trains:
            box.emit(Kind.BACKWARD, Phase.BEGIN, 0, 0, 0, names(f"\t{FIT}"))

    batch("Clips", "Net", trains=True)
    batch("Held", "Net")  # the bare model: no peer takes part
    batch("Shown", "DistributedDataParallel")
    box.emit(Kind.DATA, Phase.BEGIN, names("Held"), 0, 0, names(f"\t{FIT}"))
    box.emit(Kind.DATA, Phase.END, names("Held"), 0, 1)
    box.emit(
        Kind.BACKWARD, Phase.BEGIN, 0, 0, 0, names(f"\t{FIT}")
    )  # behind the end of the data, with none of its batches
    assert shared_loaders(timeline_of(load_cell(run.path).rank(0))) == {("Clips", FIT), ("Shown", FIT)}

"""A rank that fails on what it received, in a call that met another one; and one that fails within a call of its own accord."""

from __future__ import annotations

import pytest
from support.recordings.golden import archive_of
from support.recordings.verdicts import Recordings

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.relations.messages.received import is_in_an_exchange, misled
from nsadiag.evidence.documents.exceptions import Cause, TracebackFrame


@pytest.mark.parametrize(
    ("name", "rank"), [("rank_conditional_absurd_size", 0), ("rank_exception_unpicklable_object", None)]
)
def test_the_rank_whose_call_met_another_one(recordings: Recordings, name: str, rank: int | None) -> None:
    found = misled(Case(load_cell(recordings.of(archive_of(name)).path)))
    assert (found.rank if found else None) == rank


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        ("/site-packages/torch/distributed/distributed_c10d.py", True),
        ("/site-packages/torch/nn/parallel/distributed.py", True),
        ("/site-packages/torch/distributed/checkpoint/filesystem.py", False),  # a file that is not there
        ("/site-packages/torch/nn/functional.py", False),
    ],
)
def test_only_torchs_calls_to_other_ranks_read_what_these_sent(file: str, is_one: bool) -> None:
    frames = tuple(
        TracebackFrame(file=each, line=1, function="f", code="") for each in ("/job/train.py", file)
    )
    assert is_in_an_exchange(Cause(type="RuntimeError", message="", frames=frames)) is is_one

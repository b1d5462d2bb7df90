"""States that are taken and put back: on rows as ranks write them, what a restart within a job loses, and what it may lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.correctness.states.remarks import came_back_otherwise
from nsadiag.analysis.rules.correctness.states.rows import RESTARTS
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json

Row = dict[str, Any]


def case_of(path: Path, rows: list[tuple[int, Row]]) -> Case:
    """Two ranks that note the same, each row with its step, and ended well."""
    run = RunDir(path=path)
    for rank in (0, 1):
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        for step, row in rows:
            append_json_line(directory.invariants, {"step": step, "operations": [{"place": "train.py:9:main", **row}]})  # fmt: skip
    write_json(run.ends, {"0": {"exit_code": 0, "clean": True}, "1": {"exit_code": 0, "clean": True}})
    return Case(load_cell(path))


def stepped(step: int, number: int = 0) -> tuple[int, Row]:
    return step, {"kind": "step", "name": "SGD", "optimizer": number, "settings": ["initial_lr=0.1 lr=0.1"]}


def taken(kind: str, name: str, **more: Any) -> tuple[int, Row]:
    row = {"kind": "save", "of_state": kind, "name": name, "exact": 71, "state": 72, "settings": ["initial_lr=0.1 lr=0.05"]}  # fmt: skip
    return 24, {**row, **more}


def put_back(*kinds: str) -> list[tuple[int, Row]]:
    return [
        (24, {"kind": "load", "of_state": kind, "name": kind, "place": "train.py:60:main"}) for kind in kinds
    ]


def made(kind: str, name: str, at: int = 24, **more: Any) -> tuple[int, Row]:
    return at, {"kind": "create", "of_state": kind, "name": name, "place": "train.py:5:build", **more}


def back(number: int = 1, **more: Any) -> tuple[int, Row]:
    row = {"kind": "back", "name": "SGD", "optimizer": number, "exact": 71, "state": 72, "settings": ["initial_lr=0.1 lr=0.1"]}  # fmt: skip
    return 24, {**row, **more}


BEGUN = [made("optimizer", "SGD", 0), made("scheduler", "LambdaLR", 0, state=5), stepped(0), stepped(16)]
SAVED = [taken("optimizer", "SGD"), taken("scheduler", "LambdaLR", state=5)]
RENEWED = [made("optimizer", "SGD"), made("scheduler", "LambdaLR", state=5)]
RESUMED = [*BEGUN, *SAVED, *put_back("model"), *RENEWED]


def concluded(case: Case) -> list[tuple[str, Draft]]:
    drafts = ((rule.name, each) for rule in RESTARTS for each in rule.check(case))
    return [(name, each) for name, each in drafts if not isinstance(each, Declined)]


def test_a_schedule_that_was_taken_with_the_optimizer_is_put_back_with_it(tmp_path: Path) -> None:
    ((name, found),) = concluded(case_of(tmp_path, [*RESUMED, *put_back("optimizer"), back()]))
    assert name == "schedule_begun_anew"
    # The line that made it made the first one, too.
    assert found.at is not None and found.at.line == 60


def test_an_optimizer_that_was_taken_with_the_model_is_put_back_with_it(tmp_path: Path) -> None:
    ((name, _),) = concluded(case_of(tmp_path, [*RESUMED, back(state=0)]))
    assert name == "optimizer_begun_anew"


LOADED = put_back("optimizer")
OTHER_COURSE = [
    *BEGUN,
    *SAVED,
    *put_back("model"),
    RENEWED[0],
    made("scheduler", "LambdaLR", state=6),
    *LOADED,
]
OVER = [*BEGUN, SAVED[0], taken("scheduler", "LambdaLR", state=5, settings=["initial_lr=0.1 lr=0.0"])]


@pytest.mark.parametrize(
    ("rows", "remark"),
    [
        ([*RESUMED, *LOADED, *put_back("scheduler"), back()], False),
        ([*RESUMED, *LOADED, back(exact=70)], False),  # a model of another moment
        ([*OTHER_COURSE, back()], True),  # another phase
        ([*OVER, *put_back("model"), *RENEWED, *LOADED, back()], True),  # the first course was over
        (
            [*BEGUN, *SAVED, *put_back("model"), back(0, state=73)],
            True,
        ),  # back to a better model, with what goes on
        ([*BEGUN, SAVED[0], *put_back("model"), *RENEWED, *LOADED, back()], False),  # it was not taken
    ],
)
def test_what_may_be_meant_is_no_accusation(
    tmp_path: Path, rows: list[tuple[int, Row]], remark: bool
) -> None:
    case = case_of(tmp_path, [*rows, stepped(32, 1)])
    assert not concluded(case)
    assert bool(came_back_otherwise(case)) == remark


def epochs(*begun: tuple[int, int], sampler: int = 0, seed: int = 7) -> list[tuple[int, Row]]:
    row = {"kind": "epoch", "name": "DistributedSampler", "shuffles": True, "sampler": sampler, "seed": seed, "length": 256, "replicas": 2}  # fmt: skip
    return [(step, {**row, "epoch": epoch}) for step, epoch in begun]


def restored(later: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    return [
        stepped(0), *epochs((0, 0), (16, 1)), stepped(16),
        taken("optimizer", "SGD"), *put_back("model", "optimizer"), back(), *later, stepped(90, 1),
    ]  # fmt: skip


def test_the_rest_of_an_epoch_has_its_own_order(tmp_path: Path) -> None:
    shifted = epochs((24, 0), (32, 1), (48, 2), sampler=1)
    ((name, found),) = concluded(case_of(tmp_path, restored(shifted)))
    assert name == "other_epoch_resumed"
    assert (
        "8 steps into epoch 1, and the 8 steps that are left of it take the order of epoch 0" in found.summary
    )


@pytest.mark.parametrize(
    "later",
    [
        epochs((24, 1), (32, 2), (48, 3), sampler=1),
        epochs((24, 0), (40, 1), (56, 2), sampler=1),  # a whole epoch: another phase begins
        epochs((24, 0), (32, 1), (48, 2), sampler=1, seed=8),  # other shuffles
    ],
)
def test_epochs_that_go_on_or_begin_anew_are_left_alone(tmp_path: Path, later: list[tuple[int, Row]]) -> None:
    assert not concluded(case_of(tmp_path, restored(later)))

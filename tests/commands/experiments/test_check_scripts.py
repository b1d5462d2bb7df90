"""`nsadiag check` on the scripts of repro/ whose ranks disagree: each is told, with the class that a run gets, or listed with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.promises import Promise, promises

from nsadiag.errors import EXIT_FINDING

DISAGREE = (
    "collective_args_mismatch", "collective_order_mismatch", "data_divergent_control_flow", "divergent_module_execution",
    "grad_sync_mismatch", "model_structure_mismatch", "p2p_mismatch", "process_group_mismatch",
    "rank_conditional_collective", "uneven_inputs",
)  # fmt: skip
# What a rehearsal on this machine cannot show, with the reason.
UNSEEN = {
    "rank_conditional_save": "rank 1 polls for a file, which something outside the job could write: undecided",
}
# A verdict of another class, which is true as well.
OTHER_CLASS: dict[str, str] = {
    # That its rank has no token for the expert is data, and leads it past the expert's call.
    "collective_order_mismatch_empty_expert": "data_divergent_control_flow",
    # Each rank draws which layers it leaves out: what it drew is data of its own.
    "divergent_module_execution_layer_drop": "data_divergent_control_flow",
}
FAST = (
    "rank_conditional_validation",
    "p2p_mismatch_tag_drift",
)


def of_disagreements() -> list[Promise]:
    return [p for p in promises() if p.classes[0] in DISAGREE and not p.needs]


def told(jobs: Jobs, promise: Promise) -> tuple[bool, str]:
    """Whether it is accused: calls differ, a rank raised, or the rules found a silent error; and the class."""
    done = jobs.run("check", "--out", "run", "--seconds", "120", "--", *promise.command)
    verdict = json.loads(Path(jobs.directory, "run", "verdict.json").read_text())
    return done.returncode == EXIT_FINDING, verdict["class"]


@pytest.mark.parametrize(
    "promise",
    [
        pytest.param(p, id=p.name, marks=[] if p.name in FAST else pytest.mark.slow)
        for p in of_disagreements()
        if p.name not in UNSEEN
    ],
)
def test_a_script_whose_ranks_disagree_is_told_with_the_class_of_a_run(jobs: Jobs, promise: Promise) -> None:
    accused, cls = told(jobs, promise)
    assert accused
    assert cls in (*promise.classes, OTHER_CLASS.get(promise.name))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSEEN)
def test_a_script_is_listed_as_unseen_only_while_it_is(jobs: Jobs, name: str) -> None:
    (promise,) = (p for p in of_disagreements() if p.name == name)
    accused, _ = told(jobs, promise)
    assert not accused, "it is told by now: take it off the list"

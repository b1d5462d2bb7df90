"""Every script of repro/ gets the verdict that its docstring promises: real jobs, run as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.promises import Promise, promises

from nsadiag.analysis.rules.registry import RULES

# What judges them is held every day by their recordings. Real jobs of the everyday run on torchrun: one that hangs, a
# script of these, in test_wheel.py; those that are healthy and that crash in test_run.py and test_restart.py.
MAY_TAKE_S = "150"


def marked(promise: Promise) -> object:
    marks = [pytest.mark.slow]
    gpus = len([*Path("/proc/driver/nvidia/gpus").glob("*")])
    if promise.needs == "gpu" and gpus < promise.world_size:
        marks.append(pytest.mark.skip(reason=f"it needs a GPU for each of its ranks, and there are {gpus}"))
    return pytest.param(promise, id=promise.name, marks=marks)


def verdict_of(promise: Promise, out: Path) -> dict:
    options = promise.options or ("--timeout", MAY_TAKE_S)
    command = [
        sys.executable,
        "-m",
        "nsadiag",
        "run",
        "--json",
        "--out",
        str(out),
        *options,
        "--",
        *promise.command,
    ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1, 124), done.stderr[-3000:]
    json.loads(done.stdout)
    return json.loads((out / "verdict.json").read_text())


def processes_of(promise: Promise) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(promise.script).encode() in words:
                found.append(b" ".join(words).decode())
    return found


@pytest.mark.parametrize("promise", [marked(p) for p in promises()])
def test_the_verdict_is_the_promised_one(promise: Promise, tmp_path: Path) -> None:
    verdict = verdict_of(promise, tmp_path / "run")
    where = verdict["where"] or {}
    assert verdict["class"] in promise.classes, verdict["summary"]
    assert verdict["outcome"] in promise.outcomes, verdict["summary"]
    if verdict["outcome"] == "hung":
        assert verdict["certainty"] == promise.certainty, verdict["summary"]
    assert tuple(verdict["guilty_ranks"]) == promise.guilty_ranks, verdict["summary"]
    if promise.codes:
        assert any(code in (where["code"] or "") for code in promise.codes), where
    if promise.parameter:
        assert where["parameter"] == promise.parameter
    assert verdict["evidence"] or verdict["gaps"]
    assert processes_of(promise) == []


def test_every_class_that_has_a_rule_has_a_script() -> None:
    promised = {name for promise in promises() for name in promise.classes}
    # No script takes all of a host's memory: tests/analysis/relations/test_replica_sums.py has what its kernel says then.
    about_ranks = {cls for rule in RULES if rule.about == "ranks" for cls in rule.concludes}
    assert about_ranks - promised == {"host_oom"}

"""What `nsadiag list` names, and how `nsadiag demo` finds the job that fails as asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.promises import Promise, promises

from nsadiag.analysis.rules.registry import CLASSES
from nsadiag.commands.demo import HARD_LIMIT_S, run_options
from nsadiag.commands.faults import faults, find_fault, launcher, read_fault
from nsadiag.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_names_every_kind_of_part(jobs: Jobs) -> None:
    listed = json.loads(jobs.run("list", "--json").stdout)
    assert list(listed) == ["probes", "captures", "detectors", "engines", "reporters", "classes"]
    assert all(kind and all(kind.values()) for kind in listed.values()), listed


def test_the_list_of_faults_says_what_each_script_promises(jobs: Jobs) -> None:
    listed = json.loads(jobs.run("list", "--faults", "--json").stdout)["faults"]
    promised = {p.name: (list(p.classes), list(p.guilty_ranks), " ".join(p.launch)) for p in promises()}
    assert {n: (f["class"], f["guilty_ranks"], f["launch"]) for n, f in listed.items()} == promised
    assert all(fault["what"].endswith(".") for fault in listed.values())


def test_the_list_for_people_has_a_line_a_fault(jobs: Jobs) -> None:
    lines = jobs.run("list", "--faults").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [fault.name for fault in faults()]


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise.name)
def test_demo_starts_a_script_as_its_promise_says(promise: Promise) -> None:
    fault = read_fault(promise.script)
    words = launcher(fault)
    assert words[len(words) - len(promise.launch) + 1 :] == list(promise.launch[1:])
    given = dict(zip(promise.options[::2], promise.options[1::2], strict=True))
    assert run_options(fault)["timeout_s"] == float(given.get("--timeout", HARD_LIMIT_S))


@pytest.mark.parametrize("wanted", ["healthy_ddp", "healthy_ddp.py", "repro/healthy/healthy_ddp.py"])
def test_a_fault_is_found_however_its_name_is_spelled(wanted: str) -> None:
    assert find_fault(wanted).name == "healthy_ddp"


@pytest.mark.parametrize("cls", sorted({cls for promise in promises() for cls in promise.classes}))
def test_a_class_stands_for_a_script_that_shows_it(cls: str) -> None:
    assert cls in find_fault(cls).classes


def test_an_unknown_fault_is_told_the_nearest_names(jobs: Jobs) -> None:
    refused = jobs.run("demo", "rank_exeption")
    assert refused.returncode == 2
    assert re.search(r"^error: no such fault: rank_exeption$", refused.stderr, re.MULTILINE)
    assert re.search(r"^hint: .*\brank_exception\b", refused.stderr, re.MULTILINE)


def test_a_fault_without_a_near_name_is_sent_to_the_list() -> None:
    with pytest.raises(UsageError) as refused:
        find_fault("xyzzy")
    assert "list --faults" in refused.value.hint


def test_the_table_of_classes_has_every_class_in_causal_order() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]", (ROOT / "docs" / "classes.md").read_text(), re.MULTILINE)
    assert rows == list(CLASSES)

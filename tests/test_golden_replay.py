"""Recorded evidence of the scripts of repro/, judged again in a moment, without torch: whole, and with parts of it missing."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.golden import GOLDEN, archive_of, missed, strangers, unpack
from support.promises import Promise, promises

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge, judge_directory
from nsadiag.evidence.layout import RunDir

PROMISES = {promise.name: promise for promise in promises()}
RECORDED = sorted(name for name in PROMISES if archive_of(name).exists())
MOST_KIB = 60
SURE = 0.8
# What may be said instead where evidence is missing: less, and nothing wrong.
PARENTS = {
    "gpu_oom": {"rank_exception"},
    "host_oom": {"rank_killed"},
}
HUNG_PARENTS = {"missing_rank"}
WITHOUT_TORCH = """
import json, sys
from pathlib import Path
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("a judgement needs no torch")
sys.meta_path.insert(0, Refuse())
from nsadiag.analysis.verdict import judge_directory
print(json.dumps({Path(run).name: judge_directory(Path(run)).to_json() for run in sys.argv[1:]}))
assert "torch" not in sys.modules
"""

every_recording = pytest.mark.parametrize("name", RECORDED)


@pytest.fixture
def run(name: str, tmp_path: Path) -> RunDir:
    return unpack(archive_of(name), tmp_path / name)


def shape(verdict: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the order in which evidence is read."""
    return {key: verdict[key] for key in ("class", "outcome", "guilty_ranks", "blocked_ranks", "signature")}


def said_less_or_the_same(promise: Promise, verdict: dict[str, Any]) -> None:
    """No detector failed, nothing stuck is called healthy, nothing healthy stuck, and no one is accused wrongly."""
    failed = [gap for gap in verdict["gaps"] if gap.startswith("detector ")]
    assert failed == []
    told = f"{verdict['class']} {verdict['guilty_ranks']} {verdict['confidence']}: {verdict['summary']}"
    if "healthy" not in promise.outcomes:
        assert verdict["class"] != "healthy", told
    else:
        assert verdict["outcome"] not in ("hung", "wrong"), told
    if verdict["confidence"] < SURE or verdict["class"] == "unknown":
        return
    parents = set().union(*(PARENTS.get(cls, set()) for cls in promise.classes))
    if "hung" in promise.outcomes:
        parents |= HUNG_PARENTS
    assert verdict["class"] in {*promise.classes, *parents}, told
    assert tuple(verdict["guilty_ranks"]) == promise.guilty_ranks, told


@every_recording
def test_the_promised_verdict_is_read_from_the_recording(name: str, run: RunDir) -> None:
    verdict = judge_directory(run.path).to_json()
    assert missed(PROMISES[name], verdict) == [], verdict["summary"]


@every_recording
def test_the_order_of_ranks_and_processes_does_not_matter(name: str, run: RunDir) -> None:
    cell = load_cell(run.path)
    told = shape(judge(cell).to_json())
    for ranks in (cell.ranks[::-1], cell.ranks[1:] + cell.ranks[:1]):
        shuffled = dataclasses.replace(cell, ranks=ranks, processes=cell.processes[::-1])
        assert shape(judge(shuffled).to_json()) == told


@every_recording
def test_without_one_ranks_files_nobody_is_accused_wrongly(name: str, run: RunDir, tmp_path: Path) -> None:
    for rank in list(run.ranks()):
        rest = tmp_path / f"without-{rank.rank}"
        shutil.copytree(run.path, rest)
        shutil.rmtree(RunDir(path=rest).rank(rank.rank).path)
        said_less_or_the_same(PROMISES[name], judge_directory(rest).to_json())


@every_recording
@pytest.mark.parametrize("pattern", ["ranks/00000/**/*", "ranks/00001/**/*", "ranks/**/fr.json",
                                     "ranks/**/py_spy.json", "ranks/*/blackbox.bin", "sources/*"])  # fmt: skip
def test_with_files_cut_in_half_nobody_is_accused_wrongly(name: str, run: RunDir, pattern: str) -> None:
    for path in run.path.glob(pattern):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said_less_or_the_same(PROMISES[name], judge_directory(run.path).to_json())


def test_all_recordings_are_judged_without_torch(tmp_path: Path) -> None:
    runs = [unpack(archive_of(name), tmp_path / name).path for name in RECORDED]
    judged = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, runs)], capture_output=True, text=True, check=False
    )
    assert judged.returncode == 0, judged.stderr
    verdicts = json.loads(judged.stdout)
    assert {name: missed(PROMISES[name], verdict) for name, verdict in verdicts.items()} == {
        name: [] for name in RECORDED
    }


def test_recordings_are_small_and_tell_nothing_of_the_machine(tmp_path: Path) -> None:
    for name in RECORDED:
        assert archive_of(name).stat().st_size <= MOST_KIB * 1024, name
        assert strangers(unpack(archive_of(name), tmp_path / name).path) == set(), name


def test_no_recording_is_left_of_a_script_that_is_gone() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz")} <= set(PROMISES)

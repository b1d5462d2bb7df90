"""Recorded evidence with parts of it gone or broken: less may be said then, and nothing wrong."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.promises import Promise, promises
from support.recordings.golden import GOLDEN, archive_of, recorded, strangers
from support.recordings.verdicts import Recordings, Verdicts

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import CaptureDir, RunDir, read_json, write_json

PROMISES = {promise.name: promise for promise in promises()}
SURE = 0.8
MOST_KIB = 60
# What may be said instead where evidence is missing.
PARENTS = {
    "gpu_oom": {"rank_exception"},
    "host_oom": {"rank_killed"},
    "uneven_inputs": {"rank_exited_early"},  # it did, after fewer steps
    "data_divergent_control_flow": {"collective_order_mismatch"},  # to which the branch has led
}
HUNG_PARENTS = {"missing_rank"}
OURS = "nsadiag/worker"
# Cut in half on all ranks; each recording has its turn with one of them.
KINDS = ("ranks/**/fr.json", "ranks/**/py_spy.json", "sources/*")

every_recording = pytest.mark.parametrize("name", recorded())


@pytest.fixture
def run(name: str, recordings: Recordings, tmp_path: Path) -> RunDir:
    return recordings.linked(archive_of(name), tmp_path / name)


def replace(path: Path, content: bytes) -> None:
    """In its place another file: it is one of the recording, which other tests read."""
    path.unlink()
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


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
    # Of several guilty ranks those whose evidence is gone may go unnamed.
    named = set(verdict["guilty_ranks"])
    assert named <= set(promise.guilty_ranks) and bool(named) == bool(promise.guilty_ranks), told


@pytest.mark.one_in(4)
@every_recording
def test_without_one_ranks_files_nobody_is_accused_wrongly(
    name: str, recordings: Recordings, tmp_path: Path
) -> None:
    run = recordings.of(archive_of(name))
    for rank in run.ranks():
        rest = tmp_path / f"without-{rank.rank}"
        recordings.linked(archive_of(name), rest)
        shutil.rmtree(RunDir(path=rest).rank(rank.rank).path)
        said_less_or_the_same(PROMISES[name], judge_directory(rest).to_json())


@pytest.mark.one_in(4)
@every_recording
@pytest.mark.parametrize("pattern", ["ranks/00000/**/*", "ranks/00001/**/*", "one kind of file"])
def test_with_files_cut_in_half_nobody_is_accused_wrongly(name: str, run: RunDir, pattern: str) -> None:
    kind = KINDS[zlib.crc32(name.encode()) % len(KINDS)]
    for path in run.path.glob(pattern if "*" in pattern else kind):
        if path.is_file():
            cut_in_half(path)
    said_less_or_the_same(PROMISES[name], judge_directory(run.path).to_json())


@pytest.mark.one_in(4)
@every_recording
@pytest.mark.parametrize("left", ["half", "nothing"])
def test_with_recorders_cut_in_half_or_lost_nothing_is_concluded_surely_and_the_gap_is_named(
    name: str, run: RunDir, left: str
) -> None:
    recorders = [rank for rank in run.ranks() if rank.blackbox.exists()]
    for rank in recorders:
        if left == "half":
            cut_in_half(rank.blackbox)
        else:
            rank.blackbox.unlink()
    verdict = judge_directory(run.path).to_json()
    said_less_or_the_same(PROMISES[name], verdict)
    gaps = [gap for gap in verdict["gaps"] if "blackbox.bin is " in gap or "no recorder: " in gap]
    assert len(gaps) == len(recorders), verdict["gaps"]
    assert verdict["confidence"] < SURE or not any(rank.settings.exists() for rank in recorders)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name in recorded() if "hung" in PROMISES[name].outcomes])
@pytest.mark.parametrize("recorders", [True, False])
def test_of_a_job_that_was_attached_to_nobody_is_accused_wrongly(
    name: str, run: RunDir, verdicts: Verdicts, *, recorders: bool
) -> None:
    """It has no black box, no probe of ours is in it, and a flight recorder only if its user asked for one."""
    kills = [end for end in read_json(run.ends, {}).values() if not end["by_us"]]
    if verdicts.of(archive_of(name))["outcome"] != "hung" or (
        name.startswith("missing_rank_killed") and kills
    ):
        pytest.skip("recorded when it had ended without us: there is nothing to attach to")
    for rank in run.ranks():
        for path in rank.path.iterdir():
            if path.name not in (rank.meta.name, "captures"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for capture in rank.captures():
            without_our_frames(capture)
            if not recorders:
                capture.flight_recorder.unlink(missing_ok=True)
    ends = read_json(run.ends, {})
    write_json(run.ends, {rank: {**end, "steps": None} for rank, end in ends.items()})
    verdict = judge_directory(run.path).to_json()
    said_less_or_the_same(PROMISES[name], verdict)
    cited = {one["source"].rpartition("/")[2] for one in verdict["evidence"]}
    assert "blackbox.bin" not in cited, verdict["summary"]


def without_our_frames(capture: CaptureDir) -> None:
    threads = read_json(capture.py_spy, [])
    for thread in threads:
        thread["frames"] = [frame for frame in thread["frames"] if OURS not in frame["filename"]]
    write_json(capture.py_spy, threads)
    if capture.native.exists():
        lines = capture.native.read_text().splitlines(keepends=True)
        replace(capture.native, "".join(line for line in lines if OURS not in line).encode())


def test_no_recording_is_left_of_a_script_that_is_gone() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz")} <= set(PROMISES)


def test_recordings_are_small_and_tell_nothing_of_the_machine(recordings: Recordings) -> None:
    for name in recorded():
        assert archive_of(name).stat().st_size <= MOST_KIB * 1024, name
        assert strangers(recordings.of(archive_of(name)).path) == set(), name

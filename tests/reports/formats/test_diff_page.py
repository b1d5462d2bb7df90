"""The page of a comparison, of recorded runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands import diff
from nsadiag.evidence.layout import RunDir, write_json


def _run(folder: Path, script: str) -> Path:
    run = unpack(archive_of(script), folder)
    write_json(run.verdict, judge_directory(run.path).to_json())
    return run.path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A hang, and the same in another directory with another verdict and kernel, and a hostile name in it."""
    a = _run(tmp_path_factory.mktemp("pair") / "a", "local_lock_deadlock_dropped_record")
    b = a.with_name("b")
    shutil.copytree(a, b)
    verdict = json.loads(RunDir(path=b).verdict.read_text())
    write_json(RunDir(path=b).verdict, verdict | {"summary": "<script>alert(1)</script>", "class": "unknown"})
    run = json.loads(RunDir(path=b).run.read_text())
    write_json(RunDir(path=b).run, run | {"machine": {**run.get("machine", {}), "kernel": "9.9.9"}})
    return a, b


def test_both_verdicts_what_differs_and_the_pictures_of_each_side_are_on_it(pair: tuple[Path, Path]) -> None:
    rows = diff.rows_of(*pair)
    page = diff.page_of(rows, *pair)
    assert "local_lock_deadlock" in page and "9.9.9" in page
    assert 'id="differs"' in page and 'id="equal"' in page
    for picture in ("waits-a", "waits-b", "timeline-a", "timeline-b"):
        assert page.count(f'id="{picture}"') == 1, picture
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_a_run_beside_itself_differs_in_nothing(pair: tuple[Path, Path]) -> None:
    page = diff.page_of(diff.rows_of(pair[0], pair[0]), pair[0], pair[0])
    assert "No difference in" in page and 'id="differs"' not in page and 'id="equal"' in page


def test_the_command_writes_it_on_stdout_and_exits_as_without(pair: tuple[Path, Path]) -> None:
    words = [sys.executable, "-m", "nsadiag", "diff", *map(str, pair), "--format"]
    done = subprocess.run([*words, "html"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("<!doctype html>")
    refused = subprocess.run([*words, "pdf"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "choose terminal, html or json" in refused.stderr

"""Lists and comparisons at 60 columns, at 200, and in a pipe: no word is broken, no path cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.console import piped
from support.recordings.golden import GOLDEN, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import write_json


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    run = unpack(GOLDEN / "local_lock_deadlock_dropped_record.tar.xz", tmp_path / "one")
    write_json(run.verdict, judge_directory(run.path).to_json())
    return run.path


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("options", [(), ("--faults",)], ids=["parts", "faults"])
def test_lists_fit_the_terminal_and_are_a_line_each_in_a_pipe(options: tuple[str, ...], width: int) -> None:
    narrow = piped("list", *options, COLUMNS=str(width))
    assert max(len(line) for line in narrow if len(line.split()) > 3) <= width
    whole = piped("list", *options)
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(whole).split())
    assert len([line for line in whole if not line.startswith("  ")]) >= 6
    assert all(len(line.split()) > 1 for line in whole if line.startswith("  "))


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_a_difference_in_a_long_path_is_shown_whole(judged: Path, tmp_path: Path, width: str) -> None:
    other, path = tmp_path / "other", "/data/" + "shard-" * 20 + "0001"
    shutil.copytree(judged, other)
    about = json.loads((other / "run.json").read_text())
    about.setdefault("environment", {})["DATA"] = path
    (other / "run.json").write_text(json.dumps(about))
    done = subprocess.run(
        [sys.executable, "-m", "nsadiag", "diff", str(judged), str(other)],
        env={**os.environ, "COLUMNS": width},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"  b  {path}" in done.stdout.splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_top_leaves_out_columns_rather_than_break_a_word(judged: Path, width: int) -> None:
    lines = piped("top", "--once", str(judged), COLUMNS=str(width))
    head, *rows = lines[next(n for n, line in enumerate(lines) if line.startswith("rank ")) :]
    assert head.split()[:2] == ["rank", "step"] and len(rows) == 2
    assert max(map(len, lines)) <= width
    assert ("last event" in head) == (width > 80)

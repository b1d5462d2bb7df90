"""`nsadiag.load`: a run directory as a value, and the example of the guide as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.recordings.golden import GOLDEN, unpack

import nsadiag
from nsadiag.analysis.verdict import judge_directory
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import write_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = unpack(GOLDEN / "local_lock_deadlock_dropped_record.tar.xz", tmp_path / "run")
    write_json(found.verdict, judge_directory(found.path).to_json())
    return found.path


def test_a_run_has_its_verdict_and_its_ranks(run: Path) -> None:
    loaded = nsadiag.load(run)
    assert loaded.verdict is not None
    assert (loaded.verdict.cls, loaded.verdict.guilty_ranks) == ("local_lock_deadlock", (1,))
    assert [rank.rank for rank in loaded.ranks] == [0, 1]
    assert loaded.cells == ()
    assert "hung, local_lock_deadlock, rank 1>" in repr(loaded)
    assert loaded.verdict.summary in " ".join(str(loaded).split())


def test_its_recording_is_data_frames(run: Path) -> None:
    loaded = nsadiag.load(str(run))
    assert set(loaded.events["rank"]) == set(loaded.calls["rank"]) == {0, 1}
    assert (loaded.steps.groupby("rank")["step_s"].count() > 0).all()


def test_a_notebook_shows_its_page_in_a_frame(run: Path) -> None:
    shown = nsadiag.load(run)._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "<html" not in shown and "&lt;html" in shown
    assert nsadiag.load(run).to_html().startswith("<!")


def test_what_nsadiag_did_not_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is evidence that nsadiag knows"):
        nsadiag.load(tmp_path)


def test_the_package_itself_imports_nothing() -> None:
    code = "import sys, nsadiag; print([n for n in sys.modules if n.startswith('nsadiag.') and n != 'nsadiag.version'])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_the_example_of_the_guide_runs(run: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guide.md").read_text()
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "nsadiag.load" in block
    ]
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/latest").symlink_to(run)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("local_lock_deadlock (1,)")
    assert (tmp_path / "page.html").stat().st_size > 5000

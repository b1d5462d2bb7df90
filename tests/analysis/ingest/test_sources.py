"""The user's source is kept with the evidence, and read from there wherever it is judged."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from nsadiag.analysis.ingest import sources
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.evidence.secrets import masking as secrets
from nsadiag.evidence.user_code import is_user
from nsadiag.source.archive import keep_sources, read_sources
from nsadiag.worker import place


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(path=make_private_dir(tmp_path / "run"))


def stands_at(run: RunDir, file: Path, line: int) -> None:
    capture = run.rank(0).capture(1)
    make_private_dir(capture.path)
    frame = {"filename": str(file), "line": line, "name": "main"}
    write_json(capture.py_spy, [{"thread_name": "MainThread", "frames": [frame]}])


def test_a_file_on_a_stack_is_kept_with_what_it_imports_beside_it(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def is_main():\n    return True\n")
    script = tmp_path / "train.py"
    script.write_text("import os\nimport helpers\nprint(os.name)\n")
    stands_at(run, script, 3)
    keep_sources(run)
    assert read_sources(run) == {
        str(script): script.read_text(),
        str(tmp_path / "helpers.py"): (tmp_path / "helpers.py").read_text(),
    }


def test_the_kept_text_is_what_a_verdict_shows_after_the_file_was_edited(run: RunDir, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("loss.backward()\n")
    stands_at(run, script, 1)
    keep_sources(run)
    script.write_text("something_else()\n")
    keep_sources(run)
    cell = load_cell(run.path)
    with sources.shown(cell):
        assert linecache.getline(str(script), 1) == "loss.backward()\n"
    linecache.checkcache(str(script))
    assert linecache.getline(str(script), 1) == "something_else()\n"


def test_secrets_in_the_source_are_masked_and_it_stays_python(run: RunDir, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('api_key = "0123456789abcdef"\nhub = "hf_abcdefghijklmnop"\nprint(api_key)\n')
    stands_at(run, script, 3)
    keep_sources(run)
    kept = read_sources(run)[str(script)]
    assert "0123456789abcdef" not in kept
    assert "hf_abcdefghijklmnop" not in kept
    assert load_cell(run.path).code.file(str(script)) is not None
    assert (run.sources_index.stat().st_mode & 0o777, run.sources.stat().st_mode & 0o777) == (0o600, 0o700)


def test_an_index_that_points_outside_reads_nothing_from_there(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("not yours")
    make_private_dir(run.sources)
    write_json(run.sources_index, {"/train.py": "../../private.txt"})
    assert read_sources(run) == {}


def test_what_of_ours_runs_in_a_rank_is_not_the_users() -> None:
    assert not any(is_user(str(ours.__file__)) for ours in (secrets, place))
    assert is_user("/home/ada/nsadiag-runs/train.py")

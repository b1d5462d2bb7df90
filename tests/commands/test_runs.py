"""Runs under artifacts/: listed, the newest found, old ones removed."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.recordings.golden import GOLDEN, unpack
from typer.testing import CliRunner

from nsadiag.analysis.verdict import judge_directory
from nsadiag.cli.main import app
from nsadiag.commands import output, runs
from nsadiag.commands.run import code_of
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import read_json, write_json
from nsadiag.experiments.commits import code_at
from nsadiag.reports import RunReport, history, load_report
from nsadiag.reports.terminal.run import render_terminal


def made(folder: Path, name: str, *, started_at: str, ended: bool = True) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    document = {"schema_version": 1, "kind": "run", "name": name, "started_at": started_at}
    write_json(path / "run.json", document | ({"ended_at": started_at} if ended else {}))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made(Path("artifacts"), "20260101-000000-first", started_at="2026-01-01T00:00:00+00:00")
    made(Path("artifacts"), "20260103-000000-third", started_at="2026-01-03T00:00:00+00:00")
    made(Path("artifacts"), "20260102-000000-second", started_at="2026-01-02T00:00:00+00:00")
    return Path("artifacts")


def test_runs_are_listed_newest_first(folder: Path) -> None:
    assert [run.name[16:] for run in history.runs(folder)] == ["third", "second", "first"]


def test_a_line_has_the_verdict(folder: Path, tmp_path: Path) -> None:
    run = unpack(GOLDEN / "rank_killed_sigkill.tar.xz", folder / "20260104-000000-killed")
    write_json(run.verdict, judge_directory(run.path).to_json())
    write_json(run.run, read_json(run.run) | {"started_at": "2026-01-04T10:11:12+00:00"})
    first = CliRunner().invoke(app, ["ls"]).stdout.splitlines()[0].split()
    assert first[:6] == ["2026-01-04", "10:11", "crashed", "rank_killed,", "rank", "1"]
    assert first[-1] == str(run.path)
    (row, *_) = json.loads(CliRunner().invoke(app, ["ls", "--json"]).stdout)
    assert (row["class"], row["guilty_ranks"], row["directory"]) == ("rank_killed", [1], str(run.path))


def test_clean_keeps_the_newest_and_what_has_not_ended_and_what_a_person_named(folder: Path) -> None:
    made(folder, "20250101-000000-running", started_at="2025-01-01T00:00:00+00:00", ended=False)
    made(folder, "baseline", started_at="2024-01-01T00:00:00+00:00")
    (folder / "20240101-000000-notes").mkdir()
    would = CliRunner().invoke(app, ["clean", "--keep", "1", "--dry-run"]).stdout.splitlines()
    assert len(would) == 2 and all(line.startswith("would remove ") for line in would)
    assert len(list(folder.iterdir())) == 6
    CliRunner().invoke(app, ["clean", "--keep", "1"], catch_exceptions=False)
    left = {path.name[9:] if path.name[0] == "2" else path.name for path in folder.iterdir()}
    assert left == {"000000-third", "000000-running", "000000-notes", "baseline"}


def test_clean_says_where_there_is_nothing_to_remove(folder: Path) -> None:
    done = CliRunner().invoke(app, ["clean", "--keep", "100"], catch_exceptions=False)
    assert (done.stdout, done.exit_code) == ("", 0) and done.stderr.startswith("nothing to remove in ")


@functools.cache
def killed() -> dict[str, Any]:
    """A whole verdict."""
    with tempfile.TemporaryDirectory() as scratch:
        run = unpack(GOLDEN / "rank_killed_sigkill.tar.xz", Path(scratch))
        return judge_directory(run.path).to_json()


def judged(path: Path, outcome: str, signature: str = "") -> None:
    write_json(path / "verdict.json", killed() | {"outcome": outcome, "signature": signature})


def test_a_failure_that_came_before_is_counted(folder: Path) -> None:
    judged(folder / "20260101-000000-first", "hung", "abc")
    judged(folder / "20260102-000000-second", "healthy", "abc")
    judged(folder / "20260103-000000-third", "hung", "abc")
    lines = CliRunner().invoke(app, ["ls"]).stdout.splitlines()
    assert ["2nd time since 2026-01-01" in line for line in lines] == [True, False, False]
    assert [run.name[16:] for run in history.runs(folder) if run.failed] == ["third", "first"]
    only = CliRunner().invoke(app, ["ls", "--failed"]).stdout.splitlines()
    assert len(only) == 2 and "2nd time" in only[0]


def at_commit(path: Path, commit: str, *, changed: bool = False) -> None:
    write_json(
        path / "run.json", read_json(path / "run.json") | {"code": {"commit": commit, "changed": changed}}
    )


def test_a_failure_names_the_commits_between_which_it_began(folder: Path) -> None:
    days = {"first": "healthy", "second": "hung", "third": "hung"}
    for n, (name, outcome) in enumerate(days.items(), 1):
        path = folder / f"2026010{n}-000000-{name}"
        judged(path, outcome, "abc")
        write_json(path / "run.json", read_json(path / "run.json") | {"name": "train"})
        at_commit(path, str(n) * 40, changed=n == 2)
    said = "2nd time since 2026-01-02, first at commit 2222222222, changed, last healthy at commit 1111111111"
    assert said in CliRunner().invoke(app, ["ls"]).stdout
    report = load_report(folder / "20260103-000000-third")
    assert isinstance(report, RunReport) and (report.again, report.code) == (said, "3333333333")
    shown = " ".join(render_terminal(report).split())
    assert f"before {said}" in shown
    assert load_report(folder / "20260102-000000-second").again == ""  # type: ignore[union-attr]


def test_the_commit_of_the_script_is_known_and_whether_its_files_are_changed(tmp_path: Path) -> None:
    assert code_at(tmp_path) is None
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path))
    (tmp_path / "train.py").write_text("pass")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *words], check=True)
    sha = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert code_at(tmp_path) == {"commit": sha, "changed": False}
    (tmp_path / "train.py").write_text("pass  # more")
    assert code_of(["torchrun", str(tmp_path / "train.py")]) == {"commit": sha, "changed": True}


def test_clean_takes_the_failed_or_the_old_alone(folder: Path) -> None:
    judged(folder / "20260101-000000-first", "hung")
    judged(folder / "20260103-000000-third", "healthy")
    recent = made(folder, "20990101-000000-recent", started_at=output.now())
    judged(recent, "crashed")
    gone = json.loads(CliRunner().invoke(app, ["clean", "--failed", "--dry-run", "--json"]).stdout)
    assert [row["name"][16:] for row in gone] == ["recent", "first"]
    CliRunner().invoke(app, ["clean", "--failed", "--older", "7d"], catch_exceptions=False)
    assert sorted(run.name[16:] for run in history.runs(folder)) == ["recent", "second", "third"]


@pytest.mark.parametrize(
    "number, word", [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, word: str) -> None:
    assert history.ordinal(number) == word


def test_clean_wants_to_be_told_how_many_to_keep(folder: Path) -> None:
    assert CliRunner().invoke(app, ["clean"]).exit_code != 0
    assert len(list(folder.iterdir())) == 3


def test_a_run_without_out_is_the_latest_and_unknown_to_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    for name in ("one", "two"):
        run = output.prepare(None, name, force=False)
        assert Path("artifacts/latest").resolve() == run.path.resolve()
        (run.path / "run.json").write_text(
            json.dumps({"schema_version": 1, "kind": "run", "started_at": name})
        )
    assert (
        subprocess.run(["git", "status", "--short"], capture_output=True, text=True, check=True).stdout == ""
    )
    assert runs.latest() == run.path.resolve()
    assert [each.directory.name[16:] for each in history.runs(Path("artifacts"))] == ["two", "one"]


def test_runs_that_start_in_the_same_second_have_a_directory_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: output.prepare(None, "train", force=False).path, range(64)))
    assert len(set(made)) == 64 and all(path.is_dir() for path in made)
    assert len(history.runs(Path("artifacts"))) == 0, "none has begun"


def test_a_run_with_out_changes_nothing_under_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output.prepare(Path("here"), "one", force=False)
    assert list(Path().iterdir()) == [Path("here")]


def test_somebodys_own_file_latest_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("artifacts").mkdir()
    Path("artifacts/latest").write_text("mine")
    output.prepare(None, "one", force=False)
    assert Path("artifacts/latest").read_text() == "mine"


def test_report_without_a_directory_is_of_the_newest(folder: Path) -> None:
    shown = CliRunner().invoke(app, ["report", "--json"], catch_exceptions=False)
    assert json.loads(shown.stdout)["name"].endswith("third")


def test_without_any_run_the_hint_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no directory artifacts"):
        runs.latest()
    Path("artifacts").mkdir()
    with pytest.raises(UsageError, match="no run in artifacts"):
        runs.latest()

"""`nsadiag facts DIR [TABLE]`: the tables that rules read, with the meaning of each column."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.recordings.golden import GOLDEN, unpack
from typer.testing import CliRunner

import nsadiag
from nsadiag.analysis.tables import TABLES, case_of
from nsadiag.analysis.verdict import judge_directory
from nsadiag.cli.main import app
from nsadiag.errors import UsageError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(
        GOLDEN / "external_wait_silent_server.tar.xz", tmp_path_factory.mktemp("facts") / "run"
    ).path


def printed(*words: object) -> str:
    done = CliRunner().invoke(
        app, ["facts", *map(str, words)], catch_exceptions=False, env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0
    return done.stdout


def test_without_a_name_all_tables_are_listed_with_their_rows(run: Path) -> None:
    rows = {row["table"]: row for row in json.loads(printed(run, "--json"))["rows"]}
    assert [*rows] == [*TABLES] and all(row["holds"] for row in rows.values())
    assert rows["thread_states"]["rows"] == 2 and rows["events"]["rows"] == len(case_of(run).events)
    assert all(name in printed(run) for name in TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_its_rows_in_each_format(name: str, run: Path) -> None:
    document = json.loads(printed(run, name, "--json"))
    lines = [*csv.reader(io.StringIO(printed(run, name, "--format", "csv")))]
    assert document["table"] == name and lines[0] == [*document["columns"]]
    assert len(document["rows"]) == len(lines) - 1
    text = printed(run, name, "--rows", "3")
    assert all(f"  {column} " in text for column in document["columns"])


@pytest.mark.parametrize("name", TABLES)
def test_every_column_says_what_it_means(name: str) -> None:
    columns = TABLES[name].columns
    assert columns and all(says and not says.endswith(".") for says in columns.values())


def test_what_rules_read_of_a_run_is_what_is_printed(run: Path) -> None:
    rows = json.loads(printed(run, "waits_for", "--json"))["rows"]
    assert {(row["waiter"], row["waited_for"]) for row in rows} == {(0, 1)}
    (state,) = json.loads(printed(run, "thread_states", "--rank", "0", "--json"))["rows"]
    assert (
        state["rank"] == 0
        and state["doing"] == "collective"
        and "external_wait_silent_server.py:" in state["place"]
    )


def test_rows_are_those_of_the_ranks_that_were_asked_for(run: Path) -> None:
    ranks = {row["rank"] for row in json.loads(printed(run, "steps", "--rank", "1", "--json"))["rows"]}
    assert ranks == {1}
    assert json.loads(printed(run, "groups", "--rank", "7", "--json"))["rows"] == []


def test_of_a_long_table_the_last_rows_are_printed_and_the_others_counted(run: Path) -> None:
    events = len(case_of(run).events)
    assert f"{events} rows, of which the last 5 are shown" in printed(run, "events", "--rows", "5")


def test_a_name_that_no_table_has_is_a_usage_error_with_the_nearest_one(run: Path) -> None:
    done = CliRunner().invoke(app, ["facts", str(run), "thread_state"])
    assert isinstance(done.exception, UsageError) and "thread_states" in done.exception.hint


def test_a_notebook_gets_them_as_data_frames(run: Path) -> None:
    judge_directory(run)
    facts = nsadiag.load(run).facts
    assert [*facts] == [*TABLES]
    assert {*facts.steps["rank"]} == {0, 1} and facts["thread_states"].shape[0] == 2
    with pytest.raises(AttributeError, match="no_such_table"):
        facts.no_such_table  # noqa: B018

"""Mistakes on the command line: each a line with what was typed, and a hint with what to type."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nsadiag.cli.main import app, main
from nsadiag.errors import EXIT_USAGE

MISTAKES = {
    "matrix --slot 3": ("no such option: --slot", "did you mean --slots?"),
    "run --tiemout 5 -- true": ("no such option: --tiemout", "did you mean --timeout?"),
    "run -- --out=x": ("--out stands where the job's command is to begin", "options of nsadiag go before --"),
    "run --timeout 5 -- --out x true": ("--out stands where", "nsadiag run [OPTIONS] -- CMD"),
    "run --xyzzy -- true": ("no such option: --xyzzy", "the job itself goes behind --"),
    "run --timeout abc -- true": ("--timeout is 'abc'", "give seconds, or 90s, 10m, 2h"),
    "run --timeout=-1 -- true": ("--timeout is '-1'", "give 0 or more"),
    "clean": ("nothing says which runs are to go", "give --keep N"),
    "clean --keep many": ("--keep is 'many'", "give a whole number"),
    "reprot": ("no such command: reprot", "did you mean report?"),
    "xyzzy": ("no such command: xyzzy", "nsadiag --help"),
    "diff one": ("B is missing", "nsadiag diff --help"),
    "run --timeout": ("Option '--timeout' requires an argument", "--help"),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_said_with_a_hint(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["nsadiag", *line.split()])
    with pytest.raises(SystemExit) as left:
        main()
    error, hint = capsys.readouterr().err.splitlines()
    message, advice = MISTAKES[line]
    assert left.value.code == EXIT_USAGE
    assert error.startswith(f"error: {message}") and advice in hint


@pytest.mark.parametrize("command", [each.name or each.callback.__name__ for each in app.registered_commands])
def test_help_names_values_by_what_they_are(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"]).stdout
    options = [line for line in shown.splitlines() if line.startswith("  -")]
    assert [line for line in options if " <" in line] == []
    assert "Example: nsadiag " in shown


def test_help_is_as_wide_as_the_terminal() -> None:
    widths = {}
    for columns in ("60", "110"):
        done = subprocess.run(
            [sys.executable, "-m", "nsadiag", "run", "--help"],
            env=os.environ | {"COLUMNS": columns}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        widths[columns] = max(map(len, done.stdout.splitlines()))
    assert widths["60"] <= 60
    assert 85 < widths["110"] <= 110


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("run", ["Options", "Hangs", "Recording", "Several nodes", "Slurm and Ray"]),
        ("matrix", ["Arguments", "Options", "Slurm and Ray", "Kubernetes", "Recording", "Several nodes"]),
    ],
)
def test_help_has_many_options_in_groups(command: str, groups: list[str]) -> None:
    shown = CliRunner().invoke(app, [command, "--help"]).stdout
    titles = [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert sorted(titles) == sorted(groups)

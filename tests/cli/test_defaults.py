"""Defaults from pyproject.toml and the environment: the command line wins, then the environment, then the nearest file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from nsadiag.cli.defaults import defaults
from nsadiag.cli.shared import app
from nsadiag.errors import UsageError

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib comes with Python 3.11")


def of(folder: Path, text: str, **environ: str) -> dict[str, dict[str, Any]]:
    (folder / "pyproject.toml").write_text(text)
    below = folder / "a" / "b"
    below.mkdir(parents=True, exist_ok=True)
    return defaults(COMMANDS, below, environ)


def test_the_environment_wins_over_the_file_and_other_commands_have_tables_of_their_own(
    tmp_path: Path,
) -> None:
    text = "[tool.nsadiag.run]\nstall-after = 7\nprobes = ['light', 'parity']\n[tool.nsadiag.matrix]\nrepeat = 2\n"
    found = of(tmp_path, text, NSADIAG_STALL_AFTER="9", NSADIAG_RUN_DIR="/x", NSADIAG_FORCE="1")
    assert found == {"run": {"stall_after": "9", "probes": "light,parity"}, "matrix": {"repeat": 2}}


def test_an_option_that_may_be_repeated_takes_a_list_in_the_file_and_lines_in_the_environment(
    tmp_path: Path,
) -> None:
    text = "[tool.nsadiag.run]\nnotify = ['mail me', 'https://host/x']"
    assert of(tmp_path, text) == {"run": {"notify": ["mail me", "https://host/x"]}}
    assert of(tmp_path, "", NSADIAG_NOTIFY="mail me\nhttps://host/x") == of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[tool.nsadiag.run]\nstall_aftr = 7", "'stall_aftr'", "did you mean stall-after?"),
        ("[tool.nsadiag.run]\nforce = true", "'force'", "nsadiag run --help lists the options"),
        ("[tool.nsadiag.rnu]\n", "'rnu', which is no command", "did you mean run?"),
        ("[tool.nsadiag]\ntimeout = 3", "'timeout', which is no command", "[tool.nsadiag.run]"),
        ("[tool.nsadiag.run", "pyproject.toml: ", "correct the file"),
    ],
)
def test_what_is_not_known_is_an_error_that_names_the_nearest(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        of(tmp_path, text)
    assert message in caught.value.message and hint in caught.value.hint


def test_a_file_without_our_table_is_passed_over_even_where_it_is_broken(tmp_path: Path) -> None:
    assert of(tmp_path, "[tool.ruff") == {}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_file_above_the_working_directory_is_not_read(tmp_path: Path) -> None:
    text = "[tool.nsadiag.run]\nnotify = 'rm'"
    assert of(tmp_path, text) == {"run": {"notify": ["rm"]}}
    os.chown(tmp_path / "pyproject.toml", 12345, -1)
    assert defaults(COMMANDS, tmp_path, {}) == {}


def test_the_command_line_uses_them_and_wins_over_them(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.nsadiag.run]\nstall-after = 'never'\n")

    def said(*options: str, **environ: str) -> str:
        line = [sys.executable, "-m", "nsadiag", "run", *options, "--", "no-such-command-at-all"]
        env = {**os.environ, **environ}
        return subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stderr

    assert "--stall-after is 'never'" in said()
    assert "--stall-after is 'soon'" in said(NSADIAG_STALL_AFTER="soon")
    assert "no-such-command-at-all" in said("--stall-after", "5", NSADIAG_STALL_AFTER="soon")
    (tmp_path / "pyproject.toml").write_text("[tool.nsadiag.run]\ntimeout = 'long'\n")
    assert said().startswith("error: --timeout of pyproject.toml is 'long'\nhint: give seconds")
    assert said(NSADIAG_TIMEOUT="abc").startswith("error: NSADIAG_TIMEOUT is 'abc'\n")

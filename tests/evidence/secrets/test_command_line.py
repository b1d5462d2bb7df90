"""A very long command line is shortened wherever it is written or shown; one of a usual length is whole."""

from __future__ import annotations

import json
import shlex

import pytest
from support.jobs import Jobs

from nsadiag.evidence.secrets.command_line import MOST_OF_LINE, MOST_OF_WORD, is_shortened, shortened

JOB = "import torch; raise ValueError('no loss')"


def test_arguments_of_300_kb_are_shortened_with_their_length(jobs: Jobs) -> None:
    many, one = ["word" + "x" * 1000] * 180, "y" * 120_000
    done = jobs.run("run", "--out", "run", "--", "python", "-c", JOB, one, *many)
    assert done.returncode == 1, done.stderr
    run = jobs.directory / "run"
    for path in run.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".md", ".html"):
            text = path.read_text()
            assert len(text) < 150_000 and "y" * MOST_OF_WORD not in text, path
    command = json.loads((run / "run.json").read_text())["command"]
    assert command[:3] == ["python", "-c", JOB]
    assert command[3].endswith("... [120000 characters in all, left out by nsadiag]")
    left = 4 + 180 - (len(command) - 1)
    assert command[-1] == f"[{left} more arguments of {left * 1004} characters in all, left out by nsadiag]"
    assert "120000 characters in all" in (run / "report.md").read_text()
    done = jobs.run("shrink", "run", "--dry-run")
    assert done.returncode == 2 and "error: the recorded command was too long to be kept whole" in done.stderr


def test_a_line_of_a_usual_length_can_be_run_as_a_report_shows_it(jobs: Jobs) -> None:
    words = ["python", "-c", JOB, *(f"--model.layers.{n}.hidden-size={n * 64}" for n in range(200))]
    done = jobs.run("run", "--out", "run", "--", *words)
    assert done.returncode == 1, done.stderr
    assert f"nsadiag run -- {shlex.join(words)}" in (run := jobs.directory / "run/report.md").read_text(), run


@pytest.mark.parametrize("words", [["x" * 10**6], ["x"] * 10**5, ["x" * 4000] * 100, ["x" * 4096] * 3, []])
def test_a_shortened_line_is_short_and_stays_as_it_is(words: list[str]) -> None:
    shown = shortened(words)
    assert sum(map(len, shown)) + len(shown) <= MOST_OF_LINE
    assert shortened(shown) == shown
    assert is_shortened(shown) == (shown != words)

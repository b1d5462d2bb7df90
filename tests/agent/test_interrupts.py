"""Interrupts once the job has ended: what was waited for is left, and nothing else is."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.jobs import BIN, Jobs, wait_until


def assert_concluded(jobs: Jobs, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 37, done.stderr
    assert "Traceback" not in done.stderr and "interrupted" not in done.stderr
    verdict = json.loads((jobs.directory / "run/verdict.json").read_text())
    assert verdict["outcome"] == "crashed"


def ended_by_signals(run: subprocess.Popen[str]) -> bool:
    run.terminate()
    return run.poll() is not None


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT"])
def test_who_is_notified_is_not_waited_for_and_ended(jobs: Jobs, name: str) -> None:
    # Its limit is 10 s: sooner than that it ends only with us.
    notify = f"sh -c 'kill -{name} $PPID; sleep 600 > /dev/null 2>&1'"
    line = (
        "run",
        "--passthrough",
        "--out",
        "run",
        "--notify",
        notify,
        "--",
        "sh",
        "-c",
        "echo trained; exit 37",
    )
    done = jobs.run(*line)
    assert_concluded(jobs, done)
    assert "trained\n" in done.stdout and "CRASHED" in done.stdout


def test_a_reader_that_stops_reading_is_not_waited_for(jobs: Jobs) -> None:
    line = (
        BIN / "nsadiag",
        "run",
        "--passthrough",
        "--out",
        "run",
        "--",
        "sh",
        "-c",
        "yes | head -c 1000000; exit 37",
    )
    with subprocess.Popen(
        line, cwd=jobs.directory, env=jobs.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:  # fmt: skip
        wait_until((jobs.directory / "run/report.html").exists, "a report")
        # The first ends the wait for the output, the next one that for the verdict's text, which has no room either.
        wait_until(lambda: ended_by_signals(run), "its end")
        assert run.stderr is not None
        assert_concluded(jobs, subprocess.CompletedProcess(line, run.returncode, "", run.stderr.read()))

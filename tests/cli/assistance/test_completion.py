"""What Tab offers: values of options and arguments, not the files of the working directory alone."""

from __future__ import annotations

import pytest
from support.jobs import Jobs


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("report --format j", ["json", "junit"]),
        ("analyze --why-not rank_conditional_c", ["rank_conditional_collective"]),
        ("explain missing_r", ["missing_rank"]),
        ("demo rank_killed_sigk", ["rank_killed_sigkill"]),
        ("run --probes light,par", ["light,parity"]),
        ("report art", ["artifacts/20260101-000000-train", "artifacts/"]),
        ("facts artifacts/latest thread_s", ["thread_states"]),
    ],
)
def test_values_are_completed(jobs: Jobs, typed: str, offered: list[str]) -> None:
    run = jobs.directory / "artifacts" / "20260101-000000-train"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"kind": "run", "started_at": "2026-01-01T00:00:00+00:00"}')
    words = f"nsadiag {typed}"
    asked = {
        "_NSADIAG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = jobs.run(env=asked)
    assert done.stdout.split() == offered, done.stderr

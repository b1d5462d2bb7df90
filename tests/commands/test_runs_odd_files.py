"""Where a document of a run directory should be, there may be anything: every command says so in one line, or goes on without it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.recordings.golden import archive_of, unpack

DOCUMENTS = ("verdict.json", "run.json", "watch.json", "ends.json", "report.md", "ranks/00000/meta.json")
COMMANDS = (
    "analyze run", "report run", "report run --format html", "diff run run", "ls .", "top run --once", "invariants run",
    "analyze run --explain", "shrink run --dry-run", "clean --keep 0 .", "attach --run run --out new",
)  # fmt: skip


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


KINDS: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
    "device": _device,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "loop": lambda path: path.symlink_to(path.name),
}


def recorded(jobs: Jobs) -> Path:
    (jobs.directory / "run").mkdir(mode=0o700)
    return unpack(archive_of("straggler_slow_compute"), jobs.directory / "run").path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(4)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_anything_in_the_place_of_a_document_is_one_line(jobs: Jobs, document: str, kind: str) -> None:
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("making a device needs root")
    run = recorded(jobs)
    for command in COMMANDS:
        (run / document).unlink(missing_ok=True) if not (run / document).is_dir() else (
            run / document
        ).rmdir()
        KINDS[kind](run / document)
        done = jobs.run(*command.split())
        assert "Traceback" not in done.stderr, f"{command}: {done.stderr}"
        assert done.returncode in (0, 1, 2, 3), f"{command}: {done.stderr}"
        if done.returncode > 1:
            assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1, f"{command}: {done.stderr}"


def test_a_verdict_that_cannot_be_written_is_named_with_what_to_do(jobs: Jobs) -> None:
    run = recorded(jobs)
    (run / "verdict.json").unlink(missing_ok=True)
    (run / "verdict.json").mkdir()
    done = jobs.run("analyze", run)
    assert done.returncode == 3
    assert (
        done.stderr == f"error: cannot write {run}/verdict.json: is a directory\nhint: remove the directory\n"
    )
    assert not list(run.glob(".verdict.json.*"))

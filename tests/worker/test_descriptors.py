"""What a rank holds open for us is never taken for a file of the job's, whatever the job closes."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import nsadiag
from nsadiag.worker.descriptors import HeldFile, opened_high

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"

CLOSES = """
import faulthandler, json, os, sys
from nsadiag.worker import session
rank = session.current()
os.closerange(3, {BELOW})
mine = [open(f"mine{{n}}.txt", "w") for n in range(8)]
highest = os.dup2(mine[0].fileno(), 1000)
os.dup2(mine[0].fileno(), 1001)
for n in range(200):
    rank.names(f"a new name {{n}}")
    rank.step_ended()
for each in mine:
    each.write("user")
    each.flush()
print(json.dumps([each.fileno() for each in mine]), flush=True)
{END}
"""


def run_rank(folder: Path, source: str, **limits: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(source)
    watched = {"NSADIAG_RUN_DIR": str(folder), "PYTHONPATH": str(BOOTSTRAP), "RANK": "0", "WORLD_SIZE": "1"}

    def limit() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), value)

    return subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **watched},
        cwd=folder,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("below", [512, 4096])
def test_a_job_that_closes_what_it_does_not_know_finds_nothing_of_ours_in_its_files(
    tmp_path: Path, below: int
) -> None:
    source = CLOSES.format(BELOW=below, END="import faulthandler; faulthandler._sigsegv()")
    done = run_rank(tmp_path, source)
    assert done.returncode < 0, done.stderr
    assert json.loads(done.stdout) == list(range(3, 11))
    assert [(tmp_path / f"mine{n}.txt").read_text() for n in range(8)] == ["user"] * 8
    # What the job closed was opened anew, so that the stacks at the end are where they belong.
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "ranks/00000/faults.log").read_text()


@pytest.mark.parametrize("limit", [16, 24, 40, 1024])
def test_the_first_free_descriptor_is_that_of_a_plain_process(tmp_path: Path, limit: int) -> None:
    source = (
        "import os; from nsadiag.worker import session; print(session.current().rank, os.open(os.devnull, 0))"
    )
    done = run_rank(tmp_path, source, RLIMIT_NOFILE=(limit, limit))
    assert (done.stdout.split(), done.stderr) == (["0", "3"], "")
    assert not (tmp_path / "ranks/00000/gaps.jsonl").exists()


def test_a_number_that_was_given_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    held = HeldFile(tmp_path / "ours.log")
    assert held.number > 500
    assert held.is_ours()
    theirs = os.open(tmp_path / "theirs.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, held.number)
    os.close(theirs)
    assert not held.is_ours()
    held.close()
    os.write(held.number, b"still open")
    os.close(held.number)
    assert (tmp_path / "theirs.log").read_text() == "still open"


def test_what_is_opened_high_leaves_no_number_taken() -> None:
    before = list(Path("/proc/self/fd").iterdir())
    with opened_high():
        number = os.open(os.devnull, os.O_RDONLY)
    assert number > 500
    os.close(number)
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


FAULTS = """
import faulthandler, sys
print(faulthandler.is_enabled())
faulthandler.enable(file=open("theirs.log", "w"))
print(faulthandler.is_enabled())
{THEN}
faulthandler._sigsegv()
"""


@pytest.mark.parametrize(
    ("then", "in_theirs"), [("", True), ("print(faulthandler.disable(), faulthandler.is_enabled())", False)]
)
def test_the_users_own_faulthandler_goes_first_and_ours_is_there_without_it(
    tmp_path: Path, then: str, in_theirs: bool
) -> None:
    done = run_rank(
        tmp_path, FAULTS.format(THEN=f"{then}; sys.stdout.flush()" if then else "sys.stdout.flush()")
    )
    assert done.returncode < 0
    assert done.stdout.split() == ["False", "True", *(["True", "False"] if then else [])]
    fatal = "Fatal Python error: Segmentation fault"
    assert (fatal in (tmp_path / "theirs.log").read_text()) == in_theirs
    assert (fatal in (tmp_path / "ranks/00000/faults.log").read_text()) != in_theirs

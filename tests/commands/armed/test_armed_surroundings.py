"""Armed jobs while what is around them changes: clocks that jump, an upgrade under a running job, another user, a hidden /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.armed import ROOT, Armed
from support.jobs import Jobs, wait_until

import nsadiag

HANG = """
if rank == 0:
    open("here", "w").close()
while not os.path.exists("go_on"):
    time.sleep(0.01)
if what == "hang" and rank == 1:
    threading.Event().wait()
"""
# The wall clock of the process goes a day forth and back with every question, and libraries see it.
JUMPS = """
import itertools, time
wall, offsets = time.time, itertools.cycle((0.0, 86400.0, -86400.0, 3.0))
time.time = lambda: wall() + next(offsets)
time.time_ns = lambda: int((wall() + next(offsets)) * 1e9)
"""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@pytest.fixture
def armed(jobs: Jobs) -> Armed:
    made = Armed(jobs)
    made.arm()
    return made


def told_and_ended(armed: Armed, job: subprocess.Popen[str]) -> None:
    found = armed.told("verdict")["verdict"]
    assert (found["class"], found["guilty_ranks"]) == ("local_lock_deadlock", [1])
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    armed.finished(job)
    assert [message["event"] for message in armed.notified()] == ["verdict"]


@pytest.mark.slow
def test_clocks(armed: Armed) -> None:
    stamp = armed.directory / "clock"
    stamp.write_text("+0d\n")
    env = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(stamp),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    job = armed.start(armed.script(HANG), "hang", env=env)
    wait_until((armed.directory / "here").exists, "under way")
    import time

    for jump in ("+40d", "-400d", "+1d", "-1d"):
        stamp.write_text(jump + "\n")
        time.sleep(1)
    (armed.directory / "go_on").touch()
    told_and_ended(armed, job)
    print(
        armed.bundles(),
        (armed.home / "watcher.log").read_text() if (armed.home / "watcher.log").exists() else "",
    )
    print((armed.bundles()[0] / "run.json").read_text(), armed.status())


@pytest.mark.slow
@pytest.mark.parametrize("to", ["older", "renamed"])
def test_upgrade(armed: Armed, to: str) -> None:
    package = armed.directory / "package" / "nsadiag"
    original = Path(nsadiag.__file__).parent
    shutil.copytree(original, package, ignore=shutil.ignore_patterns("__pycache__"))
    pth = next(armed.site.glob("nsadiag-armed.pth"))
    pth.write_text(pth.read_text().replace(str(original.parent), str(package.parent)))
    job = armed.start(armed.script(HANG), "hang")
    wait_until((armed.directory / "here").exists, "under way")
    assert armed.status()["jobs"]
    shutil.rmtree(package)
    other = "711c6fdc" if to == "older" else "HEAD"
    subprocess.run(
        f"git archive {other} nsadiag | tar x -C {package.parent}", shell=True, cwd=ROOT, check=True
    )
    (armed.directory / "go_on").touch()
    told_and_ended(armed, job)


@pytest.mark.slow
def test_other_user(armed: Armed) -> None:
    # the environment is root's; jobs are of user 12345
    import tempfile

    where = Path(tempfile.mkdtemp(prefix="user-"))
    os.chown(where, 12345, 12345)
    where.chmod(0o755)
    script = where / "job.py"
    script.write_text(armed.script(HANG).read_text())
    for p in [armed.directory, *armed.directory.parents]:
        print(p, oct(p.stat().st_mode))

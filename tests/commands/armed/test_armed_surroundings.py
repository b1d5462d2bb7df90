"""Armed jobs while what is around them changes: a wall clock that jumps, an upgrade under a running job."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.jobs import Jobs, wait_until
from support.processes.armed import Armed

import nsadiag

ORIGINAL = Path(nsadiag.__file__).parent
ELSEWHEN = ("unshare", "-T", "--monotonic", "500000", "--")
STEPS_AND_HANGS = """
open(f"under_way{rank}", "w").close()
while not dist.all_reduce(stop := torch.tensor(float(os.path.exists("go_on")))) and not stop:
    step()
    time.sleep(0.05)
if rank == 1:
    threading.Event().wait()
"""
# The wall clock of a rank is a day off, now this way and now that: whoever asks sees it, and what it stamps files with.
JUMPS = """
import itertools, time
for name, unit in (("time", 1), ("time_ns", 10**9)):
    wall, days = getattr(time, name), itertools.cycle((0, 1, -400, 40))
    setattr(time, name, lambda wall=wall, days=days, unit=unit: wall() + 86400 * unit * next(days))
"""


@pytest.fixture
def armed(jobs: Jobs) -> Armed:
    made = Armed(jobs)
    made.arm()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("what", ["clock", "upgrade"])
def test_a_hang_is_told_all_the_same(armed: Armed, what: str) -> None:
    script = armed.script(STEPS_AND_HANGS)
    package = armed.directory / "package" / "nsadiag"
    if what == "clock":
        script.write_text(JUMPS + script.read_text())
    else:
        move_to(armed, package)
    job = armed.start(script)
    wait_until((armed.directory / "under_way1").exists, "the job under way")
    armed.wait_for_watcher()
    if what == "upgrade":
        shutil.rmtree(package)
        shutil.copytree(ORIGINAL, package, ignore=shutil.ignore_patterns("__pycache__"))
        version = package / "version.py"
        version.write_text(version.read_text().replace(nsadiag.__version__, "99.0"))
    else:
        time.sleep(2)  # of jumps
    assert armed.notified() == []
    (armed.directory / "go_on").touch()
    found = armed.told("verdict")["verdict"]
    assert (found["class"], found["guilty_ranks"]) == ("local_lock_deadlock", [1])
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    armed.finished(job)
    assert [message["event"] for message in armed.notified()] == ["verdict"]
    (bundle,) = armed.bundles()
    assert json.loads((bundle / "verdict.json").read_text())["times"]["onset_s"] < 1000


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run([*ELSEWHEN, "true"], capture_output=True, check=False).returncode != 0,
    reason="time namespaces need root",
)
def test_a_job_in_a_time_namespace_is_told_of_by_the_watcher_outside(armed: Armed) -> None:
    """A container that was moved from another machine keeps its monotonic clock."""
    assert armed.finished(armed.start(armed.script("", name="first.py")))[0] == 0
    armed.wait_for_watcher()
    job = armed.start(armed.script(STEPS_AND_HANGS), behind=ELSEWHEN)
    wait_until((armed.directory / "under_way1").exists, "the job under way")
    time.sleep(3)
    (armed.directory / "go_on").touch()
    found = armed.told("verdict")["verdict"]
    assert (found["class"], found["guilty_ranks"]) == ("local_lock_deadlock", [1])
    job.send_signal(signal.SIGTERM)
    armed.finished(job)
    (bundle,) = armed.bundles()
    assert 0 <= json.loads((bundle / "verdict.json").read_text())["times"]["onset_s"] < 1000


def move_to(armed: Armed, package: Path) -> None:
    """The environment is armed by a copy of the package."""
    shutil.copytree(ORIGINAL, package, ignore=shutil.ignore_patterns("__pycache__"))
    pth = next(armed.site.glob("nsadiag-armed.pth"))
    told = pth.read_text().replace(f'"package": "{ORIGINAL.parent}"', f'"package": "{package.parent}"')
    pth.write_text(told.replace(str(ORIGINAL), str(package)))

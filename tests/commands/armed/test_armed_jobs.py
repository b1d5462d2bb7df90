"""Real torchrun jobs in an armed environment: silent while they are healthy, and told of once they stall."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from support.jobs import Jobs, wait_until
from support.processes.armed import Armed, tree

HANG = """
if what == "hang" and rank == 1:
    threading.Event().wait()
"""
MISSING = """
if rank == 1:
    dist.recv(torch.ones(3), src=0)
dist.all_reduce(torch.ones(3))
"""
RELEASED = """
if rank == 1:
    released = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: released.set())
    with open("waits", "w") as file:
        file.write(str(os.getpid()))
    released.wait()
while not os.path.exists("enough") and not dist.all_reduce(stop := torch.tensor(float(os.path.exists("enough")))) and not stop:
    step()
    time.sleep(0.05)
"""


@pytest.fixture
def armed(jobs: Jobs) -> Armed:
    made = Armed(jobs)
    made.arm()
    return made


def end(job, armed: Armed) -> None:
    job.send_signal(signal.SIGTERM)
    armed.finished(job)


def test_a_healthy_job_ends_as_without_and_nothing_is_said(armed: Armed) -> None:
    script = armed.script()
    plain = armed.finished(armed.start(script, env={"NSADIAG_ARMED": "0"}))
    assert not armed.home.exists()
    before = tree(armed.venv)

    def is_as_plain() -> None:
        job = armed.start(script)
        said = job.communicate(timeout=300)[0]
        ranks = sorted(line for line in said.splitlines() if line.startswith("rank "))
        assert (job.returncode, ranks) == plain
        assert "nsadiag" not in said

    # A runtime folder without room costs the recording alone.
    armed.home.write_text("no folder")
    is_as_plain()
    armed.home.unlink()
    is_as_plain()
    assert (armed.notified(), armed.bundles()) == ([], [])
    assert armed.watcher()
    # The job's folder goes with it.
    wait_until(lambda: not armed.status()["jobs"], "the job forgotten")
    armed.disarm()
    assert not armed.home.exists()
    assert tree(armed.venv) == {name: v for name, v in before.items() if not name.endswith("armed.pth")}


def test_of_two_jobs_the_one_that_hangs_is_told_with_rank_and_line_and_left_as_it_is(armed: Armed) -> None:
    healthy = armed.start(armed.script(RELEASED.replace("if rank == 1", "if False"), "other.py"))
    script = armed.script(HANG)
    job = armed.start(script, "hang")
    message = armed.told("verdict")
    found = message["verdict"]
    assert (message["name"], found["class"], found["guilty_ranks"]) == ("job", "local_lock_deadlock", [1])
    assert "Rank 1" in message["text"] and f"{script}:" in message["text"]
    assert job.poll() is None
    (bundle,) = armed.bundles()
    assert message["directory"] == str(bundle)
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) < 20 * 2**20
    both = armed.status()["jobs"]
    assert [job["stall"]["directory"] for job in both if job["stall"]] == [str(bundle)] and len(both) == 2
    listed = armed.nsadiag("ls", str(armed.out))
    assert "local_lock_deadlock, rank 1" in listed.stdout
    # Read like any run: judged anew it says the same.
    again = armed.nsadiag("analyze", str(bundle), "--json")
    assert json.loads(again.stdout)["verdict"]["class"] == "local_lock_deadlock"
    assert (bundle / "report.html").exists()
    (armed.directory / "enough").touch()
    assert armed.finished(healthy)[0] == 0
    end(job, armed)
    assert [message["event"] for message in armed.notified()] == ["verdict"]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(armed: Armed) -> None:
    job = armed.start(armed.script(MISSING))
    found = armed.told("verdict")["verdict"]
    assert found["guilty_ranks"] == [1] and found["outcome"] == "hung"
    assert found["certainty"] == "proven"
    end(job, armed)


def test_a_stall_that_resolves_is_withdrawn_once(armed: Armed) -> None:
    job = armed.start(armed.script(RELEASED))
    armed.told("verdict")
    os.kill(int((armed.directory / "waits").read_text()), signal.SIGUSR2)
    armed.told("withdrawn")
    (armed.directory / "enough").touch()
    code, _ = armed.finished(job)
    assert code == 0
    assert [message["event"] for message in armed.notified()] == ["verdict", "withdrawn"]
    (bundle,) = armed.bundles()
    assert json.loads((bundle / "run.json").read_text())["withdrawn_at"]


@pytest.mark.slow
def test_the_next_rank_replaces_a_watcher_that_was_killed(armed: Armed) -> None:
    first = armed.start(armed.script(HANG), "healthy")
    assert armed.finished(first)[0] == 0
    killed = armed.wait_for_watcher()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: armed.watcher() is None, "the watcher gone")
    job = armed.start(armed.script(HANG), "hang")
    assert armed.told("verdict")["verdict"]["guilty_ranks"] == [1]
    assert armed.watcher() not in (None, killed)
    # What the killed one left goes, too.
    assert len(armed.status()["jobs"]) == 1
    end(job, armed)


def test_a_stall_is_told_where_no_bundle_can_be_written_and_by_a_second_watcher_not_again(
    armed: Armed,
) -> None:
    armed.out.write_text("a file in its way")
    job = armed.start(armed.script(HANG), "hang")
    message = armed.told("verdict")
    assert message["verdict"]["guilty_ranks"] == [1]
    # Beside the recordings, as in a container without a home that can be written to.
    assert message["directory"].startswith(str(armed.home / "artifacts"))
    assert (Path(message["directory"]) / "verdict.json").exists()
    killed = armed.wait_for_watcher()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: armed.watcher() is None, "the watcher gone")
    other = armed.start(armed.script(name="other.py"))
    assert armed.finished(other)[0] == 0
    assert armed.wait_for_watcher() != killed
    # Long enough for it to have looked again, were it to.
    (stalled,) = [job for job in armed.status()["jobs"] if job["stall"]]
    quiet_s = stalled["quiet_s"]
    wait_until(
        lambda: any(j["stall"] and j["quiet_s"] > quiet_s + 15 for j in armed.status()["jobs"]), "a while"
    )
    assert len(armed.notified()) == 1
    end(job, armed)


@pytest.mark.slow
def test_ranks_that_torchrun_has_restarted_are_watched(armed: Armed) -> None:
    # They fail before they meet: gloo's addresses of an attempt stay in torchrun's store, and the next one may hang by itself (torch 2.13).
    script = armed.script(HANG)
    first = "import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise ValueError('once')\n"
    script.write_text(first + script.read_text())
    job = armed.start(script, "hang", options=("--max-restarts=1",))
    found = armed.told("verdict")["verdict"]
    assert (found["class"], found["guilty_ranks"]) == ("local_lock_deadlock", [1])
    end(job, armed)


def test_a_rank_that_forks_and_one_that_executes_itself_end_as_without(armed: Armed) -> None:
    middle = """
import subprocess
child = os.fork()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
helper = "import os, torch; assert os.environ['RANK']; print(torch.ones(2).sum().item())"
assert subprocess.run([sys.executable, "-c", helper], capture_output=True, text=True).stdout == "2.0\\n"
loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=2, multiprocessing_context="fork")
assert sum(int(x) for x in loader) == 28
"""
    script = armed.script(middle)
    first = "import os, sys\nimport torch\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
    script.write_text(first + script.read_text())
    plain = armed.finished(armed.start(script, env={"NSADIAG_ARMED": "0"}))
    assert plain[0] == 0 and len(plain[1]) == 2
    assert armed.finished(armed.start(script)) == plain
    assert armed.notified() == []


PLAIN: list[list[str]] = []  # the end of that job where nothing is armed


@pytest.mark.parametrize("what", ["home", "package"])
def test_a_job_goes_on_without_the_folder_or_the_package(armed: Armed, what: str) -> None:
    """Both may vanish under a job that runs: a tmpfs that is cleaned, an upgrade."""
    middle = """
if rank == 0:
    open("here", "w").close()
while not os.path.exists("gone"):
    time.sleep(0.01)
try:
    raise ValueError("caught")
except ValueError:
    torch.save(model.state_dict(), f"saved{rank}")
"""
    script = armed.script(middle)
    if not PLAIN:
        (armed.directory / "gone").touch()
        PLAIN.append(armed.finished(armed.start(script, env={"NSADIAG_ARMED": "0"}))[1])
        for name in ("gone", "here"):
            (armed.directory / name).unlink()
    package = armed.directory / "package" / "nsadiag"
    pth = next(armed.site.glob("nsadiag-armed.pth"))
    import nsadiag

    original = Path(nsadiag.__file__).parent
    shutil.copytree(original, package, ignore=shutil.ignore_patterns("__pycache__"))
    pth.write_text(pth.read_text().replace(str(original.parent), str(package.parent)))
    job = armed.start(script)
    wait_until((armed.directory / "here").exists, "the job under way")
    assert armed.status()["jobs"]
    shutil.rmtree(armed.home if what == "home" else package)
    (armed.directory / "gone").touch()
    # torch may end by a signal of its own once the ranks are done, plain as well (seen on a busy machine).
    assert armed.finished(job)[1] == PLAIN[0] and len(PLAIN[0]) == 2
    assert armed.notified() == []


def test_a_run_of_nsadiags_own_is_recorded_as_ever(armed: Armed) -> None:
    script, out = armed.script(), armed.directory / "run"
    line = ("run", "--out", str(out), "--json", "--", str(armed.python), "-m", "torch.distributed.run")
    done = armed.nsadiag(*line, "--standalone", "--nproc-per-node=2", str(script))
    assert json.loads(done.stdout)["verdict"]["outcome"] == "healthy"
    assert not armed.home.exists()

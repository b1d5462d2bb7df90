"""`nsadiag attach`: a job that somebody else started is judged, and goes on as if nobody had looked."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until
from support.processes.warm_python import WarmPython

from nsadiag.agent import processes
from nsadiag.agent.attaching.finding import find_ranks
from nsadiag.agent.attaching.joining import InitArguments, _arguments, init_arguments
from nsadiag.agent.attaching.recorder_pipe import dump_by_pipe, plain
from nsadiag.agent.captures.target import CaptureError
from nsadiag.evidence.documents.python_stacks import StackFrame, Variable
from nsadiag.evidence.layout import CaptureDir, read_json

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
TRAIN = """
import hashlib, os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

heard = []
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTERM, signal.SIGSEGV}:
    signal.signal(number, lambda n, _: heard.append(n))

def say(text):
    with open(os.environ["SIGNALS"], "w") as pipe:
        pipe.write(text + "\\n")

def wait_for_go():
    say("waiting")
    open(os.environ["GO"]).readline()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
steps = int(os.environ.get("STEPS", 0))
goes_on, step = torch.ones(1), 0
while goes_on.item() and (not steps or step != steps):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    step += 1
    if step == 5:
        if os.environ["WAITS"] == "1":
            if rank == 1:
                wait_for_go()
        elif rank == 0:
            say("trains")
    if not steps:
        goes_on[0] = not os.path.exists("enough")
        dist.broadcast(goes_on, 0)
seen = hashlib.sha256()
for parameter in model.parameters():
    seen.update(parameter.detach().numpy().tobytes() + parameter.grad.numpy().tobytes())
seen.update(torch.get_rng_state().numpy().tobytes())
print(f"rank {rank} step {step} heard {heard} {seen.hexdigest()}", flush=True)
dist.destroy_process_group()
"""


MEETS = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank():
    with open(os.environ["SIGNALS"], "w") as pipe:
        pipe.write("waiting\\n")
    open(os.environ["GO"]).readline()
dist.all_reduce(x)
print(f"summed {x.sum().item()}\\n", end="", flush=True)  # in one write, beside the other rank
dist.destroy_process_group()
"""


@pytest.fixture
def train(jobs: Jobs) -> Path:
    script = jobs.directory / "train.py"
    script.write_text(TRAIN)
    return script


def started(jobs: Jobs, **environment: str) -> subprocess.Popen[str]:
    """The job, on plain torchrun."""
    return subprocess.Popen(
        [*TORCHRUN, "train.py"], cwd=jobs.directory, env=jobs.environment(environment),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def undisturbed(jobs: Jobs, warm_python: WarmPython, steps: str) -> list[str]:
    """What the job comes to where nobody looks: ranks without a launcher."""
    environment = jobs.environment({"WAITS": "0", "STEPS": steps})
    script = jobs.directory / "train.py"
    ranks = warm_python.start_ranks(2, script, cwd=jobs.directory, env=environment)
    printed = "".join(rank.communicate(timeout=GIVE_UP_S)[0] for rank in ranks)
    for rank in ranks:
        rank.close()
    return results(printed)


def results(stdout: str) -> list[str]:
    return sorted(re.findall(r"rank \d+ step \d+ heard \[\] [0-9a-f]{64}", stdout))


def attached(jobs: Jobs, *arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict."""
    shutil.rmtree(jobs.directory / "looked", ignore_errors=True)
    looking = jobs.start("attach", "--out", "looked", *map(str, arguments))
    _, stderr = looking.communicate(timeout=GIVE_UP_S)
    assert (jobs.directory / "looked/verdict.json").exists(), stderr
    return looking.returncode, json.loads((jobs.directory / "looked/verdict.json").read_text())


def test_a_stuck_job_is_judged_from_its_launchers_pid_and_goes_on_bitwise_equal(
    jobs: Jobs, train: Path, warm_python: WarmPython
) -> None:
    job = started(jobs, WAITS="1", STEPS="8")
    assert jobs.signals.wait() == "waiting"
    code, verdict = attached(jobs, job.pid)
    assert (code, verdict["outcome"], verdict["class"]) == (1, "hung", "io_stall"), verdict["summary"]
    assert verdict["guilty_ranks"] == [1]
    assert verdict["where"]["code"] == 'open(os.environ["GO"]).readline()'
    assert read_json(jobs.directory / "looked/run.json")["kind"] == "attach"
    jobs.go()
    disturbed, _ = job.communicate(timeout=GIVE_UP_S)
    assert len(results(disturbed)) == 2
    assert results(disturbed) == undisturbed(jobs, warm_python, steps="8")


@pytest.mark.slow
def test_a_job_that_trains_is_healthy_and_trains_on_bitwise_equal(
    jobs: Jobs, train: Path, warm_python: WarmPython
) -> None:
    job = started(jobs, WAITS="0")
    assert jobs.signals.wait() == "trains"
    code, verdict = attached(jobs, job.pid)
    assert (code, verdict["outcome"]) == (0, "healthy"), verdict["summary"]
    assert "used" in verdict["summary"]
    (jobs.directory / "enough").touch()
    disturbed, _ = job.communicate(timeout=GIVE_UP_S)
    (steps,) = {line.split()[3] for line in results(disturbed)}
    assert len(results(disturbed)) == 2
    assert results(disturbed) == undisturbed(jobs, warm_python, steps)


@pytest.mark.slow
def test_a_job_that_run_left_is_judged_again_by_what_it_records(jobs: Jobs, train: Path) -> None:
    options = ("--on-hang", "leave", "--stall-after", "1", "--out", "run")
    first = jobs.start("run", *options, "--", *TORCHRUN, "train.py", env={"WAITS": "1", "STEPS": "8"})
    assert jobs.signals.wait() == "waiting"
    first.communicate(timeout=GIVE_UP_S)
    before = json.loads((jobs.directory / "run/verdict.json").read_text())
    assert (before["class"], before["guilty_ranks"]) == ("io_stall", [1]), before["summary"]
    _, verdict = attached(jobs, "--run", "run")
    assert verdict["signature"] == before["signature"]
    assert verdict["where"]["collective"]["seq"] and verdict["progress"]["steps_done"] == 5
    jobs.go()
    wait_until(lambda: not jobs.left(), "the job to end by itself")
    # gloo may abort at exit, so the job is judged by what it wrote.
    logs = "".join(path.read_text() for path in sorted((jobs.directory / "run").glob("ranks/*/stdout.log")))
    assert len(results(logs)) == 2


def test_a_run_without_a_living_rank_is_sent_to_analyze(jobs: Jobs) -> None:
    (jobs.directory / "run/ranks/00000").mkdir(parents=True)
    (jobs.directory / "run/ranks/00000/meta.json").write_text(json.dumps({"pid": os.getpid(), "rank": 0}))
    done = jobs.run("attach", "--run", "run")
    assert (done.returncode, "nsadiag analyze run" in done.stderr) == (2, True), done.stderr


def line_with(stream: IO[str], words: str) -> str:
    """The next line in which these words are."""
    return next(line for line in stream if words in line)


@pytest.mark.slow
def test_the_first_answer_comes_before_the_second_look(jobs: Jobs, train: Path) -> None:
    job = started(jobs, WAITS="1", STEPS="8")
    assert jobs.signals.wait() == "waiting"
    looking = jobs.start("attach", "--out", "looked", str(job.pid))
    assert looking.stderr is not None
    assert line_with(looking.stderr, "nsadiag: ").startswith("nsadiag: suspected: Rank 1 ")
    assert len(read_json(jobs.directory / "looked/watch.json")["looks"]) == 1
    looking.communicate(timeout=GIVE_UP_S)
    assert len(read_json(jobs.directory / "looked/watch.json")["looks"]) == 2
    jobs.go()
    job.communicate(timeout=GIVE_UP_S)


def test_a_deadlock_is_proven_by_the_first_look_alone(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(MEETS)
    job = started(jobs)
    assert jobs.signals.wait() == "waiting"
    (stopped,) = [r.process.pid for r in find_ranks([job.pid])[0] if r.rank == 1]
    os.kill(stopped, signal.SIGSTOP)
    looking = jobs.start("attach", "--out", "looked", str(job.pid))
    _, stderr = looking.communicate(timeout=GIVE_UP_S)
    assert stderr.startswith("nsadiag: proven: Rank 1 is stopped by SIGSTOP"), stderr
    assert len(read_json(jobs.directory / "looked/watch.json")["looks"]) == 1
    assert read_json(jobs.directory / "looked/verdict.json")["certainty"] == "proven"
    os.kill(stopped, signal.SIGCONT)
    jobs.go()
    stdout, _ = job.communicate(timeout=GIVE_UP_S)
    assert stdout.count("summed 16.0") == 2


@pytest.mark.slow
def test_who_follows_a_job_hears_what_changes_until_it_ends(jobs: Jobs, train: Path) -> None:
    job = started(jobs, WAITS="1")
    assert jobs.signals.wait() == "waiting"
    following = jobs.start("attach", "--follow", "--out", "followed", str(job.pid))
    left = jobs.start("attach", "--follow", "--out", "left", str(job.pid))
    assert following.stderr is not None and left.stderr is not None
    line_with(following.stderr, "nsadiag: suspected: Rank 1 ")
    line_with(left.stderr, "nsadiag: suspected: Rank 1 ")
    left.send_signal(signal.SIGINT)
    _, stderr = left.communicate(timeout=GIVE_UP_S)
    assert (left.returncode, stderr) == (0, "")
    jobs.go()
    line_with(following.stderr, "nsadiag: progressing: ")
    (jobs.directory / "enough").touch()
    line_with(following.stderr, "nsadiag: the job has ended")
    disturbed, _ = job.communicate(timeout=GIVE_UP_S)
    assert len(results(disturbed)) == 2
    assert following.wait(timeout=GIVE_UP_S) == 0


# -- what cannot be attached to ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("slurm:abc", "is no job"),
        ("train.py", "is no pid"),
        ("0", "is no pid"),
        ("4194305", "there is no process 4194305"),
    ],
)
def test_a_wrong_target_is_one_line_and_a_hint(jobs: Jobs, word: str, said: str) -> None:
    done = jobs.run("attach", word)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and said in error and hint.startswith("hint: ")
    assert not (jobs.directory / "artifacts").exists()


@pytest.fixture
def sleeper(jobs: Jobs) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env=jobs.environment())
    yield process
    process.kill()
    process.wait()


def test_a_process_without_python_is_named(jobs: Jobs, sleeper: subprocess.Popen[bytes]) -> None:
    done = jobs.start("attach", str(sleeper.pid))
    _, stderr = done.communicate(timeout=GIVE_UP_S)
    assert (done.returncode, f"process {sleeper.pid} (sleep) runs no Python" in stderr) == (2, True), stderr


def test_a_process_of_another_user_is_refused_by_the_machine(
    jobs: Jobs, sleeper: subprocess.Popen[bytes]
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root, and setpriv")
    other = ("setpriv", "--reuid", "65534", "--clear-groups")
    jobs.directory.chmod(0o755)
    done = jobs.start("attach", str(sleeper.pid), behind=other)
    _, stderr = done.communicate(timeout=GIVE_UP_S)
    if "Permission denied" in stderr and "may not be read" not in stderr:
        pytest.skip("the environment of these tests is not readable for others")
    assert (done.returncode, "may not be read: it belongs to root" in stderr) == (3, True), stderr


# -- which process is which rank -----------------------------------------------------------------


def python(jobs: Jobs, script: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script], env=jobs.environment(environment))


def test_a_loaders_worker_that_inherits_rank_is_no_rank(jobs: Jobs) -> None:
    sleep = "import os, sys, time; open(os.environ['SIGNALS'], 'w').write('up\\n'); time.sleep(600)"
    worker = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    rank = python(jobs, worker, RANK="3", WORLD_SIZE="8", LOCAL_RANK="1", MY_TOKEN="s3cret")
    jobs.signals.wait()
    (found,), gaps = find_ranks([rank.pid])
    assert (found.rank, found.world_size, found.process.pid, gaps) == (3, 8, rank.pid, [])
    # Only what is needed was read.
    assert "MY_TOKEN" not in found.environment
    jobs.close_left()
    rank.wait()


def test_a_single_process_without_a_rank_is_rank_0(jobs: Jobs) -> None:
    sleep = "import os, time; open(os.environ['SIGNALS'], 'w').write('up\\n'); time.sleep(600)"
    process = python(jobs, sleep)
    jobs.signals.wait()
    (found,), gaps = find_ranks([process.pid])
    assert (found.rank, found.world_size, len(gaps)) == (0, 1, 1)
    process.kill()
    process.wait()


def test_processes_that_a_script_spawned_are_told_by_their_backends_threads(jobs: Jobs) -> None:
    member = "import time; open('/proc/self/comm', 'w').write('pt_gloo_runloop'); print('up', flush=True); time.sleep(600)"
    script = f"""
import subprocess, sys, time
both = [subprocess.Popen([sys.executable, "-c", {member!r}], stdout=subprocess.PIPE) for _ in range(2)]
[one.stdout.readline() for one in both]
open({str(jobs.directory / "pids")!r}, "w").write(" ".join(str(one.pid) for one in both))
print("up", flush=True)
[one.wait() for one in both]
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    pids = [int(pid) for pid in (jobs.directory / "pids").read_text().split()]
    found, gaps = find_ranks([parent.pid])
    assert [(r.rank, r.world_size, r.process.pid) for r in found] == [(0, 2, pids[0]), (1, 2, pids[1])]
    assert len(gaps) == 1
    for pid in pids:
        os.kill(pid, 9)
    parent.wait()


SPAWNS = """
import os, socket
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    open(os.environ["SIGNALS"], "a").write(f"{port}\\n")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def test_a_rank_that_meets_alone_says_nothing_of_those_on_their_way(jobs: Jobs) -> None:
    alone = SPAWNS.replace("nprocs=2", "nprocs=1")
    (jobs.directory / "spawns.py").write_text(alone)
    job = subprocess.Popen([sys.executable, "spawns.py"], cwd=jobs.directory, env=jobs.environment())
    jobs.signals.wait()
    children = [p for pid in processes.children(job.pid) if (p := processes.identify(pid))]
    wait_until(lambda: any(map(init_arguments, children)), "the one in init_process_group")
    (found,), gaps = find_ranks([job.pid])
    assert (found.process.pid, found.meeting, len(gaps)) == (job.pid, "", 1)
    jobs.close_left()
    job.wait()


def test_ranks_in_different_functions_of_torch_are_known_to_meet_at_one_address() -> None:
    def asked(name: str, **values: str) -> InitArguments | None:
        found = tuple(Variable(name=key, repr=value) for key, value in values.items())
        return _arguments(StackFrame(name=name, filename="torch/distributed/x.py", line=1, locals=found))

    store = asked("_create_c10d_store", rank="0", world_size="4", hostname="'127.0.0.1'", port="48113")
    group = asked("init_process_group", rank="1", world_size="4", init_method="'tcp://127.0.0.1:48113'")
    assert store is not None and group is not None
    assert store.meeting == group.meeting == "world_size=4 at=127.0.0.1:48113"


@pytest.mark.slow
def test_ranks_of_spawn_are_told_by_what_they_gave_init_process_group(jobs: Jobs) -> None:
    (jobs.directory / "spawns.py").write_text(SPAWNS)
    job = subprocess.Popen([sys.executable, "spawns.py"], cwd=jobs.directory, env=jobs.environment())
    ports = {jobs.signals.wait(), jobs.signals.wait()}
    wait_until(lambda: len(find_ranks([job.pid])[0]) == 2, "both in init_process_group")
    code, verdict = attached(jobs, job.pid)
    # On a busy machine they are still on their way into the wait, or no stack is had in time.
    while verdict["class"] in ("healthy", "unknown"):
        code, verdict = attached(jobs, job.pid)
    assert (code, verdict["class"], verdict["guilty_ranks"]) == (1, "rendezvous_mismatch", [1]), verdict
    assert all(f"127.0.0.1:{port}" in verdict["summary"] for port in ports), verdict["summary"]
    assert verdict["where"]["code"].startswith("dist.init_process_group(")
    jobs.close_left()
    job.wait()


# -- NCCL's pipe, as a rank would answer it: no GPU is here ---------------------------------------


DUMPER = """
import os, pickle
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe"
os.mkfifo(pipe)
reader = os.open(pipe, os.O_RDWR)
open(os.environ["SIGNALS"], "w").write("up\\n")
while os.read(reader, 128):
    entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "state": "scheduled"}
    with open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "0", "wb") as file:
        pickle.dump({"version": "2.10", "entries": [entry]}, file)
"""


def test_a_rank_with_a_pipe_is_asked_for_its_flight_recorder(jobs: Jobs) -> None:
    place = jobs.directory
    named = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{place}/pipe_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{place}/dump_",
    }
    rank = python(jobs, DUMPER, **named)
    jobs.signals.wait()
    capture = CaptureDir(path=place)
    dump_by_pipe(rank.pid, 0, capture)
    assert read_json(capture.flight_recorder)["entries"][0]["collective_seq_id"] == 7
    rank.kill()
    rank.wait()
    # A reader that is gone is a gap, and nobody waits for it.
    lonely = python(
        jobs, "import os, signal; open(os.environ['SIGNALS'], 'w').write('up\\n'); signal.pause()", **named
    )
    jobs.signals.wait()
    with pytest.raises(CaptureError, match=r"pipe_0\.pipe"):
        dump_by_pipe(lonely.pid, 0, capture)
    lonely.kill()
    lonely.wait()


def test_a_dump_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/ran",)

    with pytest.raises(CaptureError, match="only plain values"):
        plain(pickle.dumps({"entries": [Planted()]}))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CaptureError):
        plain(b"\x80\x04garbage")

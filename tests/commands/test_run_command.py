"""`nsadiag run` changes nothing about the job: not its code, its numbers, its output, its own hooks or its end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs
from support.processes.warm_python import WarmPython

import nsadiag
from nsadiag.agent.watching import discovery
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.commands.messages.notices import Lines
from nsadiag.engines.local import run_command
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.ring.reader import read_blackbox

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"
RANK = ("env", "RANK=0", "WORLD_SIZE=1", "python")
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
TRAIN = """
import hashlib, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

def train(rank, world_size, workers=0):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(world_size * 16, 8))
    mine = torch.utils.data.Subset(data, range(rank * 16, rank * 16 + 16))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    model = DDP(model) if world_size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen = hashlib.sha256()
    for (batch,) in DataLoader(mine, batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        seen.update(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        seen.update(parameter.detach().numpy().tobytes() + parameter.grad.numpy().tobytes())
    seen.update(torch.get_rng_state().numpy().tobytes())
    print(f"rank {rank} {seen.hexdigest()}", flush=True)

def spawned(rank, world_size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    train(rank, world_size)
    dist.destroy_process_group()

if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        torch.multiprocessing.spawn(spawned, args=(2, os.path.abspath("store")), nprocs=2)
    elif "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        train(0, 1, workers=2)
"""


@pytest.fixture
def train(jobs: Jobs) -> Path:
    script = jobs.directory / "train.py"
    script.write_text(TRAIN)
    return script


def verdict(jobs: Jobs) -> dict[str, Any]:
    return json.loads((jobs.directory / "run/verdict.json").read_text())


def metas(jobs: Jobs) -> dict[int, dict[str, Any]]:
    """What each recorded rank said of itself."""
    return {r.rank: json.loads(r.meta.read_text()) for r in RunDir(path=jobs.directory / "run").ranks()}


def kinds(jobs: Jobs, rank: int) -> set[int]:
    directory = RunDir(path=jobs.directory / "run").rank(rank)
    return set(read_blackbox(directory.blackbox).events["kind"].tolist())


def run(jobs: Jobs, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    arguments = ("run", "--probes", "full", "--passthrough", "--out", "run", "--")
    return jobs.run(*arguments, *command, env=environment)


def result_lines(text: str) -> list[str]:
    # Two ranks that share a pipe may come between each other's text and line end.
    return sorted(re.findall(r"rank \d+ [0-9a-f]{64}", text))


# -- what is a rank ------------------------------------------------------------------------------


def test_a_ddp_job_computes_bitwise_the_same_with_and_without_probes(
    jobs: Jobs, train: Path, warm_python: WarmPython
) -> None:
    ranks = warm_python.start_ranks(2, train, cwd=jobs.directory, env=jobs.environment())
    plain = [rank.communicate(timeout=GIVE_UP_S) for rank in ranks]
    for rank in ranks:
        rank.close()
    done = run(jobs, *TORCHRUN, "train.py")
    # Judged by what was printed: gloo now and then aborts a clean job at its exit, with us or without.
    without = result_lines("".join(stdout for stdout, _ in plain))
    assert len(without) == 2, plain
    assert result_lines(done.stdout) == without
    assert verdict(jobs)["progress"]["steps_done"] == 4
    # torchrun itself runs Python with our bootstrap too, and is no rank.
    assert [(m["rank"], m["world_size"], m["local_rank"]) for m in metas(jobs).values()] == [
        (0, 2, 0),
        (1, 2, 1),
    ]
    assert all("train.py" in m["argv"] and "torchrun" not in str(m["argv"]) for m in metas(jobs).values())
    expected = {
        Kind.PROCESS, Kind.STEP, Kind.FORWARD, Kind.BACKWARD, Kind.MODULE, Kind.GRADIENT,
        Kind.PROCESS_GROUP, Kind.WRAP, Kind.OPTIMIZER,
    }  # fmt: skip
    assert kinds(jobs, 0) >= expected and kinds(jobs, 1) >= expected


def test_a_single_process_is_rank_0_and_its_loader_workers_are_none(jobs: Jobs, train: Path) -> None:
    done = run(jobs, "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert list(metas(jobs)) == [0]
    assert metas(jobs)[0]["argv"][-1] == "train.py"
    assert verdict(jobs)["class"] == "healthy"
    assert (verdict(jobs)["world_size"], verdict(jobs)["progress"]["steps_done"]) == (1, 4)


def test_ranks_made_by_spawn_are_recorded_and_their_parent_is_none(jobs: Jobs, train: Path) -> None:
    done = run(jobs, "python", "train.py", "spawn")
    assert [(m["rank"], m["world_size"]) for m in metas(jobs).values()] == [(0, 2), (1, 2)]
    assert len({m["ppid"] for m in metas(jobs).values()}) == 1
    assert verdict(jobs)["world_size"] == 2
    assert len(result_lines(done.stdout)) == 2, done.stderr


def test_a_rank_that_is_started_again_does_not_end_the_watch(jobs: Jobs) -> None:
    again = "for n in 1 2 3; do RANK=0 WORLD_SIZE=1 python -c 'print(1)' || exit; done; echo all done"
    done = run(jobs, "sh", "-c", again)
    assert done.returncode == 0, done.stderr
    assert "all done\n" in done.stdout
    assert list(metas(jobs)) == [0]


# -- what belongs to the user --------------------------------------------------------------------


def test_the_users_own_sitecustomize_still_runs(jobs: Jobs) -> None:
    own = jobs.directory / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.from_their_own = 'theirs'\n")
    (own / "their_module.py").write_text("")
    job = "import sys, their_module; print(sys.from_their_own, 'nsadiag.worker.session' in sys.modules)"
    done = run(jobs, *RANK, "-c", job, PYTHONPATH=str(own))
    assert done.stdout.startswith("theirs True\n"), done.stderr
    assert list(metas(jobs)) == [0]


def test_a_sitecustomize_of_theirs_that_raises_is_their_own_affair(jobs: Jobs) -> None:
    (jobs.directory / "sitecustomize.py").write_text("raise RuntimeError('their mistake')\n")
    done = run(jobs, *RANK, "-c", "print('goes on')", PYTHONPATH=str(jobs.directory))
    assert done.stdout.startswith("goes on\n"), done.stderr
    assert "their mistake" in done.stderr


@pytest.mark.parametrize("option", ["-S", "-I"])
def test_python_without_site_survives_and_the_gap_is_named(jobs: Jobs, option: str) -> None:
    done = run(jobs, *RANK, option, "-c", "print('goes on')")
    assert (done.returncode, done.stdout.split("\n")[0]) == (0, "goes on"), done.stderr
    assert metas(jobs) == {}
    assert [gap for gap in verdict(jobs)["gaps"] if "-S, -E or -I" in gap]


def test_a_redirection_of_the_users_stays(jobs: Jobs) -> None:
    command = "RANK=0 WORLD_SIZE=1 python -c 'import os; print(1); os.system(\"echo 2\")' > theirs.txt"
    done = run(jobs, "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    assert (jobs.directory / "theirs.txt").read_text() == "1\n2\n"
    assert not (jobs.directory / "run/ranks/00000/stdout.log").exists()
    assert metas(jobs)[0]["logs"]["stdout"] == str(jobs.directory / "theirs.txt")


def test_an_exception_reaches_the_users_hook_and_keeps_its_exit_code(jobs: Jobs) -> None:
    job = """
import sys
theirs, sys.excepthook = sys.excepthook, lambda *error: (print("their hook", file=sys.stderr), theirs(*error))
raise ValueError("their mistake")
"""
    (jobs.directory / "job.py").write_text(job)
    done = run(jobs, *RANK, "job.py")
    assert done.returncode == 1
    assert "their hook\nTraceback" in done.stderr and "ValueError: their mistake" in done.stderr
    assert verdict(jobs)["class"] == "rank_exception"
    assert verdict(jobs)["where"]["code"] == 'raise ValueError("their mistake")'


def test_arguments_with_spaces_and_dashes_reach_the_job_as_they_are(jobs: Jobs) -> None:
    words = ["--out", "theirs", "--", "a b", "", "--json", "ü"]
    done = run(jobs, "python", "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout.splitlines()[0] == str(words)


def test_a_shell_line_may_change_directory_before_it_names_its_script(jobs: Jobs) -> None:
    (jobs.directory / "below").mkdir()
    (jobs.directory / "below/job.py").write_text("print('found')")
    assert run(jobs, "sh", "-c", "cd below && python job.py").stdout.startswith("found\n")


# -- the worker alone: whatever fails in it, the job does not notice ---------------------------------


def alone(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A rank with our bootstrap and nobody watching."""
    surroundings = {**os.environ, "PYTHONPATH": str(BOOTSTRAP), "RANK": "0", "WORLD_SIZE": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", script], env=surroundings, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"NSADIAG_RUN_DIR": "/proc/nowhere"},
        {"NSADIAG_RUN_DIR": "/dev/null"},
        {"NSADIAG_RUN_DIR": "{good}", "RANK": "first"},
        {"NSADIAG_RUN_DIR": "{good}", "WORLD_SIZE": ""},
        {"NSADIAG_RUN_DIR": "{good}", "LOCAL_RANK": "?"},
        {"NSADIAG_RUN_DIR": "{good}", "RANK": "-1"},
    ],
    ids=str,
)
def test_a_worker_that_cannot_record_lets_the_job_go_on(tmp_path: Path, environment: dict[str, str]) -> None:
    settled = {name: value.replace("{good}", str(tmp_path)) for name, value in environment.items()}
    done = alone("import atexit; atexit.register(print, 'and ends'); print('goes on')", **settled)
    assert (done.returncode, done.stdout) == (0, "goes on\nand ends\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_read_only_run_directory_lets_the_job_go_on(read_only_disk: Path) -> None:
    done = alone("print('goes on')", NSADIAG_RUN_DIR=str(read_only_disk))
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "nsadiag: rank 0 is not recorded" in done.stderr


def test_a_run_directory_that_vanishes_lets_the_job_go_on(tmp_path: Path) -> None:
    script = """
import os, shutil, sys, threading
shutil.rmtree(os.environ["NSADIAG_RUN_DIR"])
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
print("goes on")
sys.exit(3)
"""
    (tmp_path / "run").mkdir()
    done = alone(script, NSADIAG_RUN_DIR=str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (3, "goes on\n"), done.stderr
    assert "ZeroDivisionError" in done.stderr and "FileNotFoundError" not in done.stderr


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_a_ring_held_in_memory_is_brought_home_at_the_end(jobs: Jobs, end: str) -> None:
    (jobs.directory / "job.py").write_text(
        "import os, torch\nprint(os.readlink(os.environ['NSADIAG_RUN_DIR'] + '/ranks/00000/blackbox.bin'), flush=True)\n"
        f"torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()\n{end}\n"
    )
    done = jobs.run("run", "--ring", "memory", "--out", "run", "--", *RANK, "job.py")
    rank = RunDir(path=jobs.directory / "run").rank(0)
    assert rank.blackbox.is_file() and not rank.blackbox.is_symlink(), done.stderr
    assert Kind.BACKWARD in read_blackbox(rank.blackbox).events["kind"]
    in_memory = Path(done.stdout.splitlines()[0]).parent
    assert in_memory.is_relative_to("/dev/shm") and not in_memory.exists()
    assert verdict(jobs)["class"] == ("rank_killed" if end else "healthy")


DIES_OF_ITS_CORE_DUMP = """
import os, torch
pipe, core = (os.environ["CUDA_COREDUMP_" + n].replace("%p", str(os.getpid())) for n in ("PIPE", "FILE"))
os.mkfifo(pipe)
os.read(os.open(pipe, os.O_RDWR), 1)
open(core, "w").write("kernels")
raise RuntimeError("CUDA error: unspecified launch failure")
"""


@pytest.mark.slow
def test_what_a_rank_does_after_its_gpus_core_dump_is_our_doing(jobs: Jobs, tmp_path: Path) -> None:
    # As CUDA's driver does: the context is lost with the dump, and the next call raises.
    (tmp_path / "job.py").write_text(DIES_OF_ITS_CORE_DUMP)
    jobs.run(
        "run", "--cuda-core", "--stall-after", "1", "--timeout", "50", "--out", "out", "--", *RANK, "job.py"
    )
    run = RunDir(path=tmp_path / "out")
    verdict, watch = json.loads(run.verdict.read_text()), json.loads(run.watch.read_text())
    assert (verdict["outcome"], watch["stopped"]) == ("hung", "hang")
    assert [look["judgement"] for look in watch["looks"]][-1] == "still"
    assert run.rank(0).captures()[-1].cuda_core.read_text() == "kernels"
    assert json.loads(run.rank(0).exception.read_text())["type"] == "RuntimeError"


def test_a_rank_that_came_and_went_between_two_searches_is_found_at_the_end(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first search finds nobody yet, and on a machine this busy there is no second one.
    monkeypatch.setattr(discovery, "PAUSES", 1e9)
    (tmp_path / "job.py").write_text(
        "import torch\nw = torch.zeros(2, requires_grad=True)\n"
        "o = torch.optim.SGD([w], 0.1)\nw.sum().backward()\no.step()"
    )
    run = RunDir(path=tmp_path / "out")
    watched = run_command(
        [sys.executable, str(tmp_path / "job.py")], run, WatchOptions(timeout_s=100), cwd=tmp_path
    )
    assert watched.stopped is None
    end = json.loads(run.ends.read_text())["0"]
    assert (end["exit_code"], end["clean"], end["steps"], end["by_us"]) == (0, True, 1, False)


WORKS_IN_SILENCE = """
import time, torch
w = torch.zeros(2, requires_grad=True)
o = torch.optim.SGD([w], 0.1)
w.sum().backward(); o.step()

def index():
    end, total = time.monotonic() + 9, 0
    while time.monotonic() < end:
        total += len(str(total))

index()
w.sum().backward(); o.step()
"""


@pytest.mark.slow
def test_who_waits_for_a_silent_job_is_told_what_it_is_at(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(WORKS_IN_SILENCE)
    told: list[tuple[float, str]] = []

    class Noted(Lines):
        def quiet(self, quiet_s: float, seen: str) -> None:
            told.append((quiet_s, seen))

    watched = run_command(
        [sys.executable, str(tmp_path / "job.py")],
        RunDir(path=tmp_path / "out"),
        WatchOptions(stall_after_s=1.0, timeout_s=100),
        cwd=tmp_path,
        notices=Noted(),
    )
    assert watched.stopped is None
    assert told and told[0][0] > 1
    assert re.search(r"rank 0 used \d\.\d\d CPUs.*\(job\.py:\d+ in index\)$", told[0][1]), told


def test_a_silence_is_told_of_again_when_it_is_twice_as_long(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for quiet_s in (3.0, 7.0, 16.0, 25.0, 33.0, 64.0, 70.0, 15.5):  # the last is of another silence
        lines.quiet(quiet_s, "rank 1 used 1.00 CPUs")
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[4] for line in told] == ["7", "16", "33", "70", "16"]
    assert told[0].endswith("rank 1 used 1.00 CPUs. Ctrl-C ends the job with a verdict.")

"""The guard: whatever becomes of nsadiag, its job and what the job started are where the rule says, and nowhere else."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.jobs import BIN, Jobs, wait_until
from support.processes.forking import FORKING

from nsadiag.agent.job import scratch
from nsadiag.agent.processes import identify
from nsadiag.agent.stillness.patience import MIN_STALL_S
from nsadiag.evidence.layout import RunDir

SAYS = """
import os, signal, sys
def say(word):
    with open(os.environ["SIGNALS"], "w") as pipe:
        pipe.write(word + "\\n")
"""
TRAIN = (
    SAYS
    + """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def steps(n):
    for _ in range(n):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
steps(5)
"""
)
WAITS = TRAIN + "say('ready')\nopen(os.environ['GO']).read()\nsteps(5)\nsys.exit(int(sys.argv[1]))\n"
FOREVER = "say('ready')\nsignal.pause()\n"
HELPER = """
import subprocess
subprocess.Popen(["env", "-i", "setsid", "-f", sys.executable, "-c", "import signal, sys; signal.pause()"])
"""
SPAWNED = """
import multiprocessing, time
def work(i):
    if i == 0:
        say("ready")
    signal.pause()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for i in range(2):
        context.Process(target=work, args=(i,)).start()
"""
SHAPES = {
    "a_shell_script": ("sh", "-c", "python job.py; echo after"),
    "spawned": ("python", "spawned.py"),
    "deaf_to_sigterm": ("python", "deaf.py"),
    "a_detached_helper": ("python", "helper.py"),
}


@pytest.fixture
def jobs(cold_jobs: Jobs) -> Jobs:
    """Families of processes are the subject here: each begins with the command as a shell starts it."""
    return cold_jobs


def write(jobs: Jobs) -> None:
    scripts = {
        "job.py": SAYS + FOREVER,
        "deaf.py": SAYS + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER,
        "helper.py": SAYS + HELPER + FOREVER,
        "spawned.py": SAYS + SPAWNED,
        "waits.py": WAITS,
    }
    for name, text in scripts.items():
        (jobs.directory / name).write_text(text)


def here(jobs: Jobs) -> list[str]:
    """Command lines of all that runs in the test's directory, whatever its environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cwd").readlink() == jobs.directory and "Z" not in (folder / "stat").read_text():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def document(jobs: Jobs, name: str) -> dict[str, Any]:
    return dict(json.loads((jobs.directory / "run" / name).read_text()))


# -- nsadiag dies ---------------------------------------------------------------------------------


def test_a_job_outlives_a_killed_nsadiag_and_how_it_ended_is_written_down(jobs: Jobs) -> None:
    write(jobs)
    started = jobs.start("run", "--ring", "memory", "--out", "run", "--", "python", "waits.py", "0")
    assert jobs.signals.wait() == "ready"
    ring = RunDir(path=jobs.directory / "run").rank(0).blackbox
    in_memory = ring.readlink().parent
    assert in_memory.is_relative_to("/dev/shm") and in_memory.exists()
    started.kill()
    started.wait()
    assert started.stderr is not None
    assert "nsadiag: watching; evidence goes to run" in started.stderr.readline()
    # A slow machine is told of the first step in between.
    line = next(line for line in started.stderr if "first step done" not in line)
    assert "nsadiag died; the job goes on unwatched: process" in line and str(jobs.directory) in line
    assert any("waits.py" in line for line in jobs.left().values())
    jobs.go()
    wait_until(lambda: not jobs.left(), "the job and its guard gone")
    started.communicate()
    assert document(jobs, "watch.json")["launcher_exit_code"] == 0
    assert document(jobs, "ends.json")["0"]["steps"] == 10
    assert ring.is_file() and not ring.is_symlink()
    assert not in_memory.exists()
    judged = json.loads(jobs.run("analyze", "run", "--json").stdout)["verdict"]
    assert judged["class"] == "healthy", judged
    assert any("nsadiag died" in gap for gap in judged["gaps"])


def some(*names: str) -> list[Any]:
    """These shapes, and the others as slow tests."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in SHAPES]


@pytest.mark.parametrize("shape", some("spawned", "a_detached_helper"))
def test_with_die_with_me_nobody_outlives_a_killed_nsadiag(jobs: Jobs, shape: str) -> None:
    write(jobs)
    started = jobs.start("run", "--die-with-me", "--out", "run", "--", *SHAPES[shape])
    assert jobs.signals.wait() == "ready"
    started.kill()
    started.communicate()
    wait_until(lambda: not here(jobs), "all of them gone")


@pytest.mark.parametrize("shape", some("a_shell_script", "deaf_to_sigterm", "a_detached_helper"))
def test_nobody_outlives_an_interrupted_run(jobs: Jobs, shape: str) -> None:
    write(jobs)
    started = jobs.start("run", "--out", "run", "--", *SHAPES[shape])
    assert jobs.signals.wait() == "ready"
    started.send_signal(signal.SIGHUP)
    done = jobs.finish(started)
    assert here(jobs) == []
    assert (done.returncode, document(jobs, "watch.json")["stopped"]) == (130, "interrupt")
    assert (jobs.directory / "run/verdict.json").exists()
    assert "nsadiag: stopping: one last" in done.stderr


def test_a_job_that_was_being_ended_is_ended_though_nsadiag_is_killed(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(
        SAYS
        + "signal.signal(signal.SIGTERM, lambda *_: say('asked to end'))\nsay('ready')\nwhile True: signal.pause()\n"
    )
    started = jobs.start("run", "--out", "run", "--", "python", "job.py")
    assert jobs.signals.wait() == "ready"
    started.terminate()
    # Not from what nsadiag prints first: the guard hears only after that.
    assert jobs.signals.wait() == "asked to end"
    started.kill()
    started.communicate()
    wait_until(lambda: not here(jobs), "all of them gone")


def test_a_second_interrupt_ends_a_job_at_once_and_the_verdict_is_kept(jobs: Jobs) -> None:
    write(jobs)
    started = jobs.start("run", "--out", "run", "--", "python", "deaf.py")
    assert jobs.signals.wait() == "ready"
    for _ in range(2):
        started.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert jobs.finish(started).returncode == 130
    assert document(jobs, "verdict.json")["outcome"] == "unknown"
    assert not (jobs.directory / "run/report.html").exists()


WAITS_FOR_RANK_1 = (
    SAYS
    + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    say("stuck")
    signal.pause()
dist.barrier()
"""
)


def test_an_interrupt_in_a_silence_says_who_is_waited_for(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(WAITS_FOR_RANK_1)
    started = jobs.start("run", "--stall-after", "600", "--out", "run", "--", *FORKING, "2", "job.py")
    assert jobs.signals.wait() == "stuck"
    time.sleep(MIN_STALL_S + 1)
    started.send_signal(signal.SIGINT)
    assert jobs.finish(started).returncode == 130
    (look,) = document(jobs, "watch.json")["looks"]
    assert look["judgement"] != "still", "nobody has waited 600 s"
    verdict = document(jobs, "verdict.json")
    assert (verdict["outcome"], verdict["guilty_ranks"]) == ("incomplete", [1]), verdict["summary"]
    assert verdict["where"]["code"] == "signal.pause()"


def test_an_interrupt_soon_after_the_last_step_calls_no_job_healthy(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(
        f"{TRAIN}import time\nsteps(50)\ntime.sleep({MIN_STALL_S - 2})\nsay('stuck')\nsignal.pause()\n"
    )
    started = jobs.start("run", "--out", "run", "--", "python", "job.py")
    assert jobs.signals.wait() == "stuck"
    started.send_signal(signal.SIGINT)
    assert jobs.finish(started).returncode == 130
    verdict = document(jobs, "verdict.json")
    assert verdict["outcome"] == "incomplete", verdict["summary"]


def test_a_second_interrupt_skips_the_last_snapshot(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(WAITS_FOR_RANK_1)
    started = jobs.start("run", "--stall-after", "600", "--out", "run", "--", *FORKING, "2", "job.py")
    assert jobs.signals.wait() == "stuck"
    time.sleep(MIN_STALL_S + 1)
    started.send_signal(signal.SIGINT)
    first = jobs.directory / "run/ranks/00001/captures/01"
    wait_until(first.exists, "the first of two snapshots")
    started.send_signal(signal.SIGINT)
    assert jobs.finish(started).returncode == 130
    assert document(jobs, "watch.json")["looks"] == []
    assert not first.with_name("02").exists()
    assert document(jobs, "verdict.json")["guilty_ranks"] == [1]


def test_a_stopped_nsadiag_does_not_stop_its_job(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(
        SAYS + "say('ready')\nopen(os.environ['GO']).read()\nprint('x' * 10**6)\nsay('on')\n"
    )
    started = jobs.start("run", "--passthrough", "--out", "run", "--", "python", "job.py")
    assert jobs.signals.wait() == "ready"
    started.send_signal(signal.SIGSTOP)
    jobs.go()
    assert jobs.signals.wait() == "on"
    started.send_signal(signal.SIGCONT)
    assert jobs.finish(started).returncode == 0


def test_a_killed_guard_costs_nothing_and_leaves_nobody(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(
        SAYS + "say('ready')\nopen(os.environ['GO']).read()\nsys.exit(4)\n"
    )
    rank = ("env", "RANK=0", "WORLD_SIZE=1", "python", "job.py")  # one that takes no time to import torch
    started = jobs.start("run", "--out", "run", "--", *rank)
    assert jobs.signals.wait() == "ready"
    (guard,) = [pid for pid, line in jobs.left().items() if "guard.py" in line]
    os.kill(guard, signal.SIGKILL)
    jobs.go()
    done = jobs.finish(started)
    assert done.returncode == 1
    assert document(jobs, "ends.json")["0"]["exit_code"] == 4


def test_directories_of_the_dead_are_removed_and_those_of_the_living_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    owner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    paths = {name: scratch.make(where=tmp_path) for name in ("dead", "living", "nobodys")}
    (paths["nobodys"] / scratch.OWNERS).unlink()
    for name in ("dead", "living"):
        kept = (paths[name] / scratch.OWNERS).read_text().splitlines()[:2]
        (paths[name] / scratch.OWNERS).write_text("\n".join(kept) + "\n")
    gone = identify(owner.pid)
    scratch.add_owner(paths["dead"], gone)
    scratch.add_owner(paths["living"], identify(os.getpid()))
    scratch.sweep()
    assert all(path.exists() for path in paths.values())
    owner.kill()
    owner.wait()
    scratch.sweep()
    assert [name for name, path in paths.items() if path.exists()] == ["living", "nobodys"]


# -- the job does not notice ----------------------------------------------------------------------

ITSELF = """
import json, os, sys
told = {k: v for k, v in (line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        if k in ("SigBlk", "SigIgn", "Umask", "NoNewPrivs")}
told["leads its group"] = os.getpgrp() == os.getpid()
told["descriptors"] = sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1]
told["stdin"] = sys.stdin.read()
told["fifth"] = os.read(5, 10).decode()
print(json.dumps(told))
"""


def test_signals_descriptors_and_stdin_are_those_without_nsadiag(jobs: Jobs) -> None:
    (jobs.directory / "itself.py").write_text(ITSELF)
    (jobs.directory / "config").write_text("for the job\n")
    line = "trap '' USR1 QUIT; exec {} python itself.py < config 5< config"

    def told(before: str) -> dict[str, Any]:
        done = subprocess.run(
            ["sh", "-c", line.format(before)], cwd=jobs.directory, env=jobs.environment(), capture_output=True,
            text=True, check=True, start_new_session=True,
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[0]))

    assert told(f"{BIN}/nsadiag run --out run --") == told("")


def test_a_program_from_stdin_runs(jobs: Jobs) -> None:
    done = subprocess.run(
        [BIN / "nsadiag", "run", "--passthrough", "--out", "run", "--", "python", "-"],
        cwd=jobs.directory, env=jobs.environment(), input="print('from stdin'); raise SystemExit(5)",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[0]) == (5, "from stdin"), done.stderr


@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -INT $$", 130)])
def test_the_exit_code_passes_through_the_guard(jobs: Jobs, end: str, code: int) -> None:
    done = jobs.run("run", "--passthrough", "--out", "run", "--", "bash", "-c", end)
    assert done.returncode == code
    watched = document(jobs, "watch.json")["launcher_exit_code"]
    assert watched == (code if code < 128 else 128 - code)


def test_a_command_that_cannot_be_started_is_an_error_with_its_reason(jobs: Jobs) -> None:
    (jobs.directory / "broken").write_text("#!/no/such/interpreter\n")
    (jobs.directory / "broken").chmod(0o755)
    done = jobs.run("run", "--out", "run", "--", "./broken")
    assert done.returncode == 3
    assert "error: cannot start ./broken: No such file or directory" in done.stderr


# -- what is not read, and what finds no room -----------------------------------------------------

LOUD = (
    TRAIN
    + "line = b'x' * 65535 + b'\\n'\nfor _ in range(16 * int(sys.argv[1])): os.write(1, line)\nsay('printed')\n"
)


@pytest.mark.slow
def test_output_that_nobody_reads_takes_no_memory_and_holds_nobody_up(jobs: Jobs) -> None:
    (jobs.directory / "loud.py").write_text(LOUD)
    started = jobs.start("run", "--out", "run", "--", "python", "loud.py", "600")
    assert jobs.signals.wait() == "printed"
    wait_until((jobs.directory / "run/report.md").exists, "the verdict, while nobody reads")
    status = Path(f"/proc/{started.pid}/status").read_text()
    peak_mib = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    done = jobs.finish(started)
    assert done.stdout.count("x" * 65535 + "\n") == 600 * 16
    assert "HEALTHY" in done.stdout
    assert peak_mib < 250, f"{peak_mib:.0f} MiB"


@pytest.mark.slow
def test_a_log_keeps_its_first_and_its_last_part(jobs: Jobs) -> None:
    counts = (
        TRAIN
        + "for n in range(400_000): print(f'line {n:06}', flush=False)\nsay('printed')\nopen(os.environ['GO']).read()\nprint('the end')\n"
    )
    (jobs.directory / "job.py").write_text(counts)
    started = jobs.start("run", "--log-limit", "1", "--out", "run", "--", "python", "job.py")
    assert jobs.signals.wait() == "printed"
    log = RunDir(path=jobs.directory / "run").rank(0).stdout
    wait_until(lambda: log.stat().st_blocks * 512 < 2**20 + 3 * 4096, "the middle gone")
    jobs.go()
    done = jobs.finish(started)
    text = log.read_text()
    assert text.startswith("line 000000\n") and text.endswith("line 399999\nthe end\n")
    assert re.search(r"\[nsadiag: \d+ MiB left out: --log-limit\]", text)
    assert len(text) < 2**20 + 4 * 4096
    assert "HEALTHY" in done.stdout


FILLS = (
    TRAIN
    + """
try:
    with open(os.path.join(os.environ["DISK"], "filler"), "wb", buffering=0) as file:
        while file.write(b"x" * 65536): pass
except OSError:
    pass
steps(5)
sys.exit(int(sys.argv[1]))
"""
)


@pytest.mark.parametrize("code", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_a_full_disk_costs_neither_the_verdict_nor_the_exit_code(
    jobs: Jobs, tiny_disk: Path, code: int
) -> None:
    (jobs.directory / "fills.py").write_text(FILLS)
    done = jobs.run(
        "run", "--passthrough", "--out", tiny_disk / "run", "--", "python", "fills.py", str(code),
        env={"DISK": str(tiny_disk)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("HEALTHY" if code == 0 else "CRASHED") in done.stdout, done.stdout + done.stderr
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_files_that_may_not_grow_cost_neither_the_verdict_nor_the_exit_code(jobs: Jobs) -> None:
    write(jobs)
    (jobs.directory / "job.py").write_text(TRAIN + "steps(5)\nsys.exit(0)\n")
    done = subprocess.run(
        [BIN / "nsadiag", "run", "--passthrough", "--out", "run", "--", "python", "job.py"],
        cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stderr and "Traceback" not in done.stderr
    assert "not written: " in done.stderr and done.stdout


@pytest.mark.slow
def test_a_script_whose_name_is_in_no_encoding_has_its_verdict(jobs: Jobs) -> None:
    name = os.fsencode(jobs.directory) + b"/bad\xff.py"
    Path(os.fsdecode(name)).write_text(TRAIN)
    done = subprocess.run(
        [BIN / "nsadiag", "run", "--out", "run", "--", "python", b"bad\xff.py"],
        cwd=jobs.directory, env=jobs.environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"HEALTHY" in done.stdout
    # As a terminal would show it: what is in no encoding is in no document of ours.
    assert "bad\ufffd" in done.stdout.decode()
    assert "bad\ufffd" in (jobs.directory / "run/report.html").read_text()


def test_a_command_without_torch_is_nothing_to_diagnose(jobs: Jobs) -> None:
    done = jobs.run("run", "--out", "run", "--", "python", "-c", "print(1)")
    assert done.returncode == 0
    assert "Nothing to diagnose: exit code 0, no PyTorch process seen." in done.stdout
    assert "sure" not in done.stdout and "next" not in done.stdout and "the same command" not in done.stdout


def test_a_size_of_the_flight_recorder_that_the_user_chose_stays(jobs: Jobs) -> None:
    program = "import os; print({k: v for k, v in os.environ.items() if 'BUFFER_SIZE' in k})"
    done = jobs.run(
        "run", "--out", "run", "--", "python", "-c", program, env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}
    )
    assert done.stdout.startswith("{'TORCH_NCCL_TRACE_BUFFER_SIZE': '7'}\n")


def test_a_job_that_was_left_runs_as_far_as_we_know_and_keeps_nobody_waiting_for_our_stderr() -> None:
    code = (
        "import os\n"
        "from nsadiag.agent.job.guarded_process import Guarded\n"
        "null = open(os.devnull, 'wb')\n"
        "job = Guarded(['sleep', '60'], env=os.environ, stdout=null, stderr=null, die_with_me=False)\n"
        "job.leave()\n"
        "print(job.pid, job.poll())\n"
    )
    # Returns at the end of the pipes, which a guard that kept ours would hold for a minute.
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    pid, _, code_so_far = done.stdout.strip().partition(" ")
    os.kill(int(pid), signal.SIGKILL)  # fails where the job has ended meanwhile
    assert (code_so_far, done.stderr) == ("None", "")
    assert seconds < 50


# As where a job of thousands of nodes is watched: each has a connection by the time the job starts.
AMONG_MANY = """
import os, resource, sys
from nsadiag.agent.job.guarded_process import Guarded

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
null = open(os.devnull, "r+b")
held = [os.dup(null.fileno()) for _ in range(1100)]
job = Guarded(["sh", "-c", "exit 7"], env=os.environ, stdout=null, stderr=null, die_with_me=False)
print(job.wait())
"""


def test_a_job_is_started_and_waited_for_beside_more_than_a_thousand_open_files() -> None:
    done = subprocess.run([sys.executable, "-c", AMONG_MANY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr

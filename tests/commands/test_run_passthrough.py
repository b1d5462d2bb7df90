"""With --passthrough nothing of nsadiag's keeps a job from starting: one that cannot be recorded runs alone."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.jobs import BIN, Jobs

import nsadiag

JOB = ("sh", "-c", "echo ran; exit 37")
UNRECORDED = "nsadiag: the job runs, and is not recorded: "


def assert_ran_unrecorded(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert (done.returncode, done.stdout) == (37, "ran\n"), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(UNRECORDED) and why in line


@pytest.mark.parametrize(
    ("options", "environment", "why"),
    [
        (("--out", "taken"), {}, "taken exists and is not empty"),
        (("--out", "taken/file/run"), {}, "cannot write to taken/file/run"),
        (("--out", "o" * 300), {}, "File name too long"),
        (("--frobnicate",), {}, "no such option: --frobnicate"),
        (("--timeout", "soon"), {}, "--timeout is 'soon'"),
        (("--metrics", "taken"), {}, "--metrics: taken is a directory"),
        (("--notify", "no-such-command"), {}, "no-such-command"),
        (("--nnodes", "2"), {}, "--nnodes needs --node-rank"),
        (("--engine", "cloud"), {}, "--engine is 'cloud'"),
        ((), {"NSADIAG_TIMEOUT": "soon"}, "NSADIAG_TIMEOUT is 'soon'"),
        ((), {"NSADIAG_PROBES": "brain"}, "no such probe: brain"),
        ((), {"NSADIAG_RESTART_ON": "always"}, "--restart-on is 'always'"),
    ],
)
def test_a_job_that_cannot_be_recorded_runs_alone(
    jobs: Jobs, options: tuple[str, ...], environment: Mapping[str, str], why: str
) -> None:
    (jobs.directory / "taken").mkdir()
    (jobs.directory / "taken" / "file").write_text("")
    assert_ran_unrecorded(jobs.run("run", "--passthrough", *options, "--", *JOB, env=environment), why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[tool.nsadiag.run\n", "pyproject.toml: "),
        ("[tool.nsadiag.run]\ntiemout = 3\n", "[tool.nsadiag.run] has 'tiemout'"),
    ],
)
def test_a_pyproject_that_is_wrong_does_not_keep_the_job_from_starting(
    jobs: Jobs, text: str, why: str
) -> None:
    (jobs.directory / "pyproject.toml").write_text(text)
    done = jobs.run("run", "--", *JOB, env={"NSADIAG_PASSTHROUGH": "1"})
    assert_ran_unrecorded(done, why)


def test_a_disk_that_nothing_may_be_written_to_does_not_keep_the_job_from_starting(
    jobs: Jobs, read_only_disk: Path
) -> None:
    done = jobs.run("run", "--passthrough", "--out", read_only_disk / "run", "--", *JOB)
    assert_ran_unrecorded(done, "Read-only file system")


def test_a_full_disk_does_not_keep_the_job_from_starting(jobs: Jobs, tiny_disk: Path) -> None:
    with (tiny_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while file.write(bytes(65536)):
            pass
    done = jobs.run("run", "--passthrough", "--out", tiny_disk / "run", "--", *JOB)
    assert done.returncode == 37 and "ran" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("descriptors", [6, 7, 8, 9, 10, 12, 16])
def test_a_lack_of_descriptors_does_not_keep_the_job_from_starting(jobs: Jobs, descriptors: int) -> None:
    done = subprocess.run(
        [BIN / "nsadiag", "run", "--passthrough", "--out", "run", "--", *JOB],
        cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
    )  # fmt: skip
    assert done.returncode == 37 and "ran" in done.stdout, done.stdout + done.stderr


def test_nobody_who_reads_stderr_does_not_keep_the_job_from_starting(cold_jobs: Jobs) -> None:
    line = f"{BIN / 'nsadiag'} run --passthrough --out run -- sh -c 'echo ran; exit 37' 2> /dev/full"
    done = subprocess.run(
        line, shell=True, cwd=cold_jobs.directory, env=cold_jobs.environment(), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 37 and "ran" in done.stdout, done.stdout


def test_a_job_that_runs_alone_finds_its_process_as_a_shell_would_have_made_it(cold_jobs: Jobs) -> None:
    look = (
        "sh",
        "-c",
        "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd; env | grep -c NSADIAG_RUN_TOKEN",
    )
    plain = subprocess.run(look, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    done = cold_jobs.run(
        "run", "--passthrough", "--out", "signals", "--", *look,
        env={"NSADIAG_RUN_TOKEN": "a-token-of-some-length"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    assert done.stderr.startswith(UNRECORDED)


def test_json_leaves_stdout_to_the_document_that_there_is_not(jobs: Jobs) -> None:
    done = jobs.run("run", "--passthrough", "--json", "--out", "signals", "--", *JOB)
    assert (done.returncode, done.stdout) == (37, "")
    assert done.stderr.endswith("\nran\n")


def test_a_torchrun_that_cannot_meet_the_other_nodes_is_told_of_them_all_the_same(jobs: Jobs) -> None:
    (jobs.directory / "torchrun").write_text('#!/bin/sh\necho "$@"\n')
    (jobs.directory / "torchrun").chmod(0o755)
    where = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "host0")
    # Node 1 is not given the run's token.
    done = jobs.run("run", "--passthrough", *where, "--", "./torchrun", "--nproc-per-node", "2", "train.py")
    assert done.returncode == 0, done.stderr
    told = "--nnodes 2 --node-rank 1 --master-addr host0 --master-port 29500"
    assert done.stdout == f"{told} --nproc-per-node 2 train.py\n"


def test_a_torchrun_that_would_train_alone_on_each_of_several_nodes_is_not_started(jobs: Jobs) -> None:
    (jobs.directory / "torchrun").write_text("#!/bin/sh\necho ran\n")
    (jobs.directory / "torchrun").chmod(0o755)
    done = jobs.run("run", "--passthrough", "--nnodes", "2", "--", "./torchrun", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --nnodes needs --node-rank" in done.stderr


def test_a_command_that_is_not_there_is_called_missing(jobs: Jobs) -> None:
    done = jobs.run("run", "--passthrough", "--out", "run", "--", "no-such-launcher", "train.py")
    assert done.returncode == 2
    assert "error: no such command: no-such-launcher" in done.stderr


def test_a_python_script_that_is_not_there_is_pythons_to_refuse(jobs: Jobs) -> None:
    done = jobs.run("run", "--passthrough", "--out", "run", "--", "python", "nowhere.py")
    assert done.returncode == 2
    assert "can't open file" in done.stderr


@pytest.mark.parametrize(("options", "code"), [(("--passthrough",), 37), ((), 3)])
def test_a_nsadiag_that_is_removed_while_the_job_runs_is_named_as_the_reason(
    cold_jobs: Jobs, options: tuple[str, ...], code: int
) -> None:
    package = cold_jobs.directory / "there" / "nsadiag"
    shutil.copytree(Path(nsadiag.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    job = ("sh", "-c", f"rm -r {package}; echo ran; exit 37")
    done = subprocess.run(
        [sys.executable, "-m", "nsadiag", "run", *options, "--out", "run", "--", *job],
        cwd=cold_jobs.directory, env=cold_jobs.environment({"PYTHONPATH": str(package.parent)}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "ran\n"), done.stdout + done.stderr
    assert "nsadiag was removed or replaced while the job ran: No module named" in done.stderr
    assert "hint: install it again, then: nsadiag analyze run\n" in done.stderr
    assert "Traceback" not in done.stderr


# Namespaces, how /proc becomes what cannot be used there, and what is said of it.
PROCS = [
    (("--mount",), "mount -t tmpfs none /proc", "/proc/self cannot be read: No such file or directory"),
    (
        ("--mount",),
        "mount -t proc -o subset=pid none /proc",
        "/proc/stat cannot be read: No such file or directory",
    ),
    (("--mount", "--pid", "--fork"), "true", "/proc shows another PID namespace"),
]


def beneath(
    jobs: Jobs, namespaces: tuple[str, ...], mounted: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`nsadiag run` of the job in namespaces of its own."""
    if subprocess.run(
        ["unshare", *namespaces, "sh", "-c", mounted], capture_output=True, check=False
    ).returncode:
        pytest.skip("another /proc needs root")
    line = f'{mounted} && exec "$@"'
    return subprocess.run(
        ["unshare", *namespaces, "sh", "-c", line, "sh", BIN / "nsadiag", "run", *arguments, "--out", "run", "--", *JOB],
        cwd=jobs.directory, env=jobs.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("namespaces", "mounted", "why"), PROCS)
def test_a_proc_that_cannot_be_read_does_not_keep_the_job_from_starting(
    jobs: Jobs, namespaces: tuple[str, ...], mounted: str, why: str
) -> None:
    done = beneath(jobs, namespaces, mounted, "--passthrough")
    assert (done.returncode, done.stdout) == (37, "ran\n"), done.stderr
    assert UNRECORDED in done.stderr and why in done.stderr


@pytest.mark.parametrize(("namespaces", "mounted", "why"), PROCS)
def test_without_passthrough_a_proc_that_cannot_be_read_is_named_before_anything_starts(
    jobs: Jobs, namespaces: tuple[str, ...], mounted: str, why: str
) -> None:
    done = beneath(jobs, namespaces, mounted)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"error: {why}" in done.stderr and "hint: " in done.stderr


BROKEN_WATCH = """
import sys
from nsadiag.agent.watching import watch
def fails(*_, **__):
    raise ValueError("the watch is broken")
watch.Patience = fails
from nsadiag.cli import main
main()
"""


@pytest.mark.parametrize(("passthrough", "code"), [(("--passthrough",), 37), ((), 4)])
def test_a_watch_that_fails_leaves_the_job_to_come_to_its_own_end(
    cold_jobs: Jobs, passthrough: tuple[str, ...], code: int
) -> None:
    job = ("sh", "-c", "sleep 1; echo ran; exit 37")
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_WATCH, "run", *passthrough, "--out", "run", "--", *job],
        cwd=cold_jobs.directory, env=cold_jobs.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "ran\n"), done.stderr
    assert "the watch is broken" in done.stderr

"""`nsadiag doctor` tries each source of evidence for real, names what stops it and the remedy, and leaves nothing behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs import BIN, GIVE_UP_S, Jobs

NOBODY = 65534
ESSENTIAL = {"recorder", "kernel state", "Python stacks", "disk"}


def by_name(text: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(text)["checks"]}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that sees no site-packages: no torch, and none of ours. Where torch is not the subject, it saves its import."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def bin_without_py_spy(tmp_path: Path) -> Path:
    """A Python that sees our packages, with no py-spy beside it: a link elsewhere."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(Path(sys.executable).resolve())
    return folder


@pytest.fixture
def site_without_py_spy(tmp_path: Path) -> Path:
    """All packages that we see, but for one."""
    folder = tmp_path / "site"
    folder.mkdir()
    for site in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for package in site.iterdir():
            if not package.name.startswith(("py_spy", "py-spy")) and not (folder / package.name).exists():
                (folder / package.name).symlink_to(package)
    return folder


def test_everything_that_is_needed_works_here(jobs: Jobs) -> None:
    started = time.monotonic()
    done = jobs.run("doctor", "--json")
    took = time.monotonic() - started
    found = by_name(done.stdout)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["ready"] is True
    assert {name for name, check in found.items() if check["essential"]} == ESSENTIAL
    assert {found[name]["status"] for name in (*ESSENTIAL, "native stacks", "faulthandler", "deaths")} == {
        "works"
    }
    assert "dump_traceback" in found["worker server"]["detail"]
    assert "TORCH_FR_BUFFER_SIZE" in found["flight recorder"]["detail"]
    assert "nobody at" in found["NCCL RAS"]["detail"]
    # Seconds on an idle machine; what is bounded here is that no check waits for another's time-out.
    assert took < 30
    assert [p.name for p in jobs.directory.iterdir() if "doctor" in p.name] == []


def test_for_a_person_it_is_a_table_and_colour_only_where_it_belongs(jobs: Jobs, bare_python: Path) -> None:
    plain = jobs.run("doctor")
    assert plain.stdout.split()[0] in ("READY", "LIMITED") and "\x1b" not in plain.stdout
    assert "✓  recorder" in plain.stdout
    narrow = jobs.run("doctor", "--python", bare_python, env={"COLUMNS": "60", "PYTHONIOENCODING": "ascii"})
    assert "+  recorder" in narrow.stdout and narrow.stdout.isascii()
    title, python, *rest = narrow.stdout.splitlines()
    assert python.endswith("/python"), "a long path has a line of its own"
    assert max(len(line.rstrip()) for line in (title, *rest)) <= 60


def test_a_python_without_torch_is_told_apart_from_a_machine_that_is_not_ready(
    jobs: Jobs, bare_python: Path
) -> None:
    done = jobs.run("doctor", "--python", bare_python, "--json")
    found = by_name(done.stdout)
    assert done.returncode == 0, done.stdout
    assert (found["worker server"]["status"], found["Python stacks"]["status"]) == ("missing", "works")
    assert "No module named 'torch'" in found["worker server"]["detail"]
    assert "--python" in found["worker server"]["remedy"]


def test_without_py_spy_it_is_limited_and_says_what_to_install(
    jobs: Jobs, bin_without_py_spy: Path, site_without_py_spy: Path, bare_python: Path
) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(site_without_py_spy)])
    done = subprocess.run(
        [bin_without_py_spy / "python", "-m", "nsadiag", "doctor", "--json", "--python", bare_python],
        env={**jobs.environment(), "PYTHONPATH": path, "PATH": f"{bin_without_py_spy}:/usr/bin:/bin"},
        cwd=jobs.directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = by_name(done.stdout)
    assert done.returncode == 0, done.stderr
    assert {
        name: (found[name]["status"], found[name]["remedy"]) for name in ("Python stacks", "native stacks")
    } == {
        "Python stacks": ("limited", "pip install py-spy"),
        "native stacks": ("missing", "pip install py-spy"),
    }
    assert "lines come from faulthandler" in found["Python stacks"]["detail"]
    assert found["recorder"]["status"] == "works"


def test_a_python_that_is_none_is_a_finding_and_no_traceback(jobs: Jobs) -> None:
    for python in (jobs.directory / "none", "/bin/false"):
        done = jobs.run("doctor", "--python", python)
        assert done.returncode == 3
        assert "NOT READY" in done.stdout and "Traceback" not in done.stderr


def test_a_disk_without_room_is_not_ready(jobs: Jobs, tiny_disk: Path, bare_python: Path) -> None:
    done = jobs.run("doctor", "--json", "--python", bare_python, "--out", tiny_disk / "artifacts")
    disk = by_name(done.stdout)["disk"]
    assert (done.returncode, disk["status"]) == (3, "missing")
    assert "--out" in disk["remedy"]


def test_a_launcher_that_keeps_the_probes_out_is_named(jobs: Jobs, bare_python: Path) -> None:
    folder = jobs.directory / "launchers"
    folder.mkdir()
    (folder / "torchrun").write_text(f"#!{sys.executable} -I\n")
    (folder / "torchrun").chmod(0o755)
    path = f"{folder}:{BIN}:{os.environ['PATH']}"
    done = jobs.run("doctor", "--json", "--python", bare_python, env={"PATH": path})
    found = by_name(done.stdout)["Python options"]
    assert (
        found["status"] == "limited"
        and "torchrun" in found["detail"]
        and "-m torch.distributed.run" in found["remedy"]
    )


# -- permission: a process of somebody else's -----------------------------------------------------


@contextlib.contextmanager
def somebody_elses() -> Iterator[int]:
    """A Python process of the user nobody."""
    script = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming somebody else needs root"
)
def test_without_permission_the_remedy_is_to_be_its_owner_or_root(jobs: Jobs) -> None:
    no_capabilities = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    with somebody_elses() as pid:
        allowed = jobs.run("doctor", "--json", "--pid", str(pid))
        denied = jobs.run("doctor", "--json", "--pid", str(pid), behind=no_capabilities)
    assert allowed.returncode == 0, allowed.stdout
    found = by_name(denied.stdout)
    assert denied.returncode == 3, denied.stdout
    assert found["Python stacks"]["status"] == "missing"
    assert "permission denied" in found["Python stacks"]["detail"]
    assert "run nsadiag as nobody" in found["Python stacks"]["remedy"]
    assert "no CAP_SYS_PTRACE" in found["ptrace permission"]["detail"]
    assert found["kernel state"]["status"] == "limited" and "syscall" in found["kernel state"]["detail"]


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="dropping capabilities needs root"
)
def test_ones_own_processes_need_no_capability(jobs: Jobs, bare_python: Path) -> None:
    no_capabilities = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = jobs.run("doctor", "--json", "--python", bare_python, behind=no_capabilities)
    found = by_name(done.stdout)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if not scope.exists() or scope.read_text().strip() == "0":
        assert (done.returncode, found["Python stacks"]["status"]) == (0, "works"), done.stdout


def test_a_process_that_is_not_there_is_a_mistake_of_usage(jobs: Jobs) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = jobs.run("doctor", "--pid", str(gone.pid))
    assert done.returncode == 2 and done.stderr.startswith(f"error: there is no process {gone.pid}\nhint: ")


def test_interrupted_it_leaves_no_process(jobs: Jobs) -> None:
    started = jobs.start("doctor")
    folder = f".nsadiag-doctor-{started.pid}"
    deadline = time.monotonic() + 60
    while not (jobs.directory / folder).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=GIVE_UP_S)
    while jobs.left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert jobs.left() == {}
    assert started.returncode == 130
    assert not (jobs.directory / folder).exists()

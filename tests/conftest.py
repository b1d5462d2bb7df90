"""What several test files share."""

import atexit
import gc
import os
import signal
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.costs import Costs
from support.jobs import Jobs
from support.processes.ranks import Ranks
from support.processes.warm_jobs import WarmJobs
from support.processes.warm_python import PRELOAD_COMMAND, WarmPython
from support.recordings.verdicts import Recordings, Verdicts, shared_folder

# Most tests wait for a verdict on a job that does hang: a suspicion counts at once. Those about patience name their own.
os.environ.setdefault("NSADIAG_PATIENCE", "0")

# One thread for torch, in a test's own process too: on shapes this small a second one spends its time spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what stands before `&` with Ctrl-C ignored, nohup with SIGHUP, and every process from there on inherits
# it: tests that interrupt a command would find it deaf. A handler of Python's is not inherited: children have the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, metavar="FILE", help="append each test's CPU time to FILE")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collects without garbage collection.

    It makes a million objects, which live as long as this process does: the collector would go through them time and
    again, here and in the tests. What is left is looked through once, and set aside.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries say what the interpreter leaves at its end
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        one_in = item.get_closest_marker("one_in")
        # By the sum of its name: the same ones each time, on every worker.
        if one_in and zlib.crc32(item.nodeid.encode()) % one_in.args[0]:
            item.add_marker("slow")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--costs"):
        config.pluginmanager.register(Costs(file), "costs")


@pytest.fixture(scope="session")
def warm_command() -> Iterator[WarmPython]:
    """Processes of Python that have imported nsadiag already."""
    warm = WarmPython(PRELOAD_COMMAND)
    yield warm
    warm.close()


@pytest.fixture
def jobs(tmp_path: Path, warm_command: WarmPython) -> Iterator[Jobs]:
    """The command, ready to be started in tmp_path; whatever it leaves running ends with the test."""
    started = Jobs(tmp_path, warm_command)
    yield started
    started.close()


@pytest.fixture
def cold_jobs(tmp_path: Path) -> Iterator[Jobs]:
    """The same, started as a shell starts it, import and all: for what depends on how it begins, or on whose child it is."""
    started = Jobs(tmp_path)
    yield started
    started.close()


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """The files of whole recordings, each unpacked once a test run: nobody writes to them."""
    return Recordings(shared_folder(tmp_path_factory, "recordings"))


@pytest.fixture(scope="session")
def verdicts(recordings: Recordings, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The verdicts of whole recordings, each judged once a test run."""
    return Verdicts(shared_folder(tmp_path_factory, "verdicts"), recordings)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Processes of Python that have imported torch already."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def warm_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJobs]:
    """Jobs that a verdict is asked of, on one launcher."""
    warm = WarmJobs(tmp_path_factory.mktemp("warm_jobs"))
    yield warm
    warm.close()


@pytest.fixture
def ranks(jobs: Jobs, warm_python: WarmPython) -> Iterator[Ranks]:
    """Ranks that nobody watches."""
    started = Ranks(jobs, warm_python)
    yield started
    started.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    yield from _mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "tmpfs")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that nobody may write to."""
    yield from _mounted(tmp_path / "read-only", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs")


def _mounted(place: Path, *options: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place.mkdir()
    command = ["mount", *options, str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)

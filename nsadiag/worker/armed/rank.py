"""The recording of a rank that nobody has asked about, in an armed environment (`nsadiag arm`): silent, and in memory.

Ranks of one job meet in a folder named after their launcher, below the user's home on this node; the first one starts a
process that watches all of them. Called right after torch has been imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nsadiag.evidence.arming import home
from nsadiag.evidence.arming.settings import JOB, SETTINGS, Settings, settings_in, with_variables
from nsadiag.evidence.layout import make_private_dir
from nsadiag.worker import session
from nsadiag.worker.interruptions import pass_on, tolerated

PROBES = "armed"
# Variables by which launchers number the processes that they start.
NUMBERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
FLIGHT_RECORDER = ("TORCH_FR_BUFFER_SIZE", "2000")
OLDER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE"
MOST_ANCESTORS = 32
START_S = 10.0  # for the first of two processes to end; a rank does not wait longer for its watcher
# Not a child of the rank: it is not to be ended with it, nor waited for. It has nothing of the job's open, and every CPU that
# a rank may be kept from.
STARTER = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.chdir("/")
os.umask(0o077)
try:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
except OSError:
    pass
os.nice(10)
os.execv(sys.executable, [sys.executable, "-E", "-c", *sys.argv[1:]])
"""
WATCH = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nsadiag.commands.armed.watcher import main; main(*sys.argv[1:])"


def begin(armed_by: str) -> None:
    """Opens the recording of this rank; on any obstacle the job simply goes on."""
    if session.current() is not None:
        return
    settings = settings_by(armed_by)
    found = (
        _entered() or _entered()
    )  # the first may have been removed just then, by a watcher that had nothing left to watch
    if found is None or not (session.current() is not None or session.is_unnamed()):
        return
    place = found
    session.on_leaving.append(lambda rank: _leave(place, rank.directory.path))
    if not place.is_watched():
        start_watcher(place, settings)


def _entered() -> home.Home | None:
    """The home in which this process records from here on; None where there is none, or it was removed meanwhile."""
    found = home.found(create=True)
    if found is None:
        return None
    try:
        with found.entering():
            _enter(found)
    except FileNotFoundError as error:
        pass_on(error)
        return None
    return found


def settings_by(armed_by: str) -> Settings:
    """By the file that armed this environment, or by the variables alone. Raises OSError or ValueError."""
    if armed_by:
        return with_variables(settings_in(Path(armed_by).read_text()))
    package = str(Path(__file__).resolve().parents[3])
    return with_variables(Settings(version="", python=sys.executable, package=package))


def _enter(found: home.Home) -> None:
    from nsadiag.worker import startup
    from nsadiag.worker.introspection import server
    from nsadiag.worker.probes import PROBES_VARIABLE

    name = job_name()
    run = found.job(name)
    sockets = make_private_dir(run.path / "s")  # short: a unix socket's path has room for 107 bytes
    os.environ.update(
        {
            "NSADIAG_RUN_DIR": str(run.path),
            server.SOCKET_DIR: str(sockets),
            PROBES_VARIABLE: PROBES,
            JOB: name,
        }
    )
    if OLDER_SIZE not in os.environ:
        os.environ.setdefault(*FLIGHT_RECORDER)
    startup.attach_to_armed_process()


def job_name() -> str:
    """The same for all ranks that one launcher has started here, and for no other job's."""
    pid = os.getppid()
    for _ in range(MOST_ANCESTORS):
        if pid <= 1 or not _is_numbered(pid):
            break
        pid = int(_stat(pid)[1])
    started = _stat(pid)[19] if pid > 0 else "0"
    return f"{pid}-{started}-{_namespace()}"


def _is_numbered(pid: int) -> bool:
    """Whether the process is itself one of several that a launcher started: a shell around a rank, say."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError as error:
        pass_on(error)
        return False
    mine = {f"{name}={os.environ[name]}".encode() for name in NUMBERS if name in os.environ}
    return not mine.isdisjoint(environment)


def _stat(pid: int) -> list[str]:
    """Fields from the third on, as in agent.processes; where it may not be read, zeros."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError as error:
        pass_on(error)
        return ["0"] * 20


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError as error:
        pass_on(error)
        return 0


def start_watcher(found: home.Home, settings: Settings) -> None:
    """One a node; of two that are started at once the second ends by itself. Nothing is said where it cannot be started."""
    numbers = {*NUMBERS, "NSADIAG_RUN_DIR", "NSADIAG_RUN_ID", JOB}
    environment = {name: value for name, value in os.environ.items() if name not in numbers}
    # A process's words are everybody's to read, and an address to notify is a secret.
    environment[SETTINGS] = settings.to_json()
    with tolerated(OSError, subprocess.SubprocessError):
        starter = subprocess.Popen(
            [settings.python, "-E", "-c", STARTER, WATCH, settings.package, str(found.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        starter.wait(START_S)


def _leave(found: home.Home, directory: Path) -> None:
    """Clean-up after a rank: its files are the watcher's to remove; where none lives it goes by itself."""
    if found.is_watched():
        return
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    for folder in (directory.parent, directory.parents[1] / "s", directory.parents[1]):
        with tolerated(OSError):
            folder.rmdir()

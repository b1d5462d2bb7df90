"""Nothing that nsadiag waits for outlasts its limit: each kind of peer here answers a byte now and then, and never ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until
from support.reported import HUNG

from nsadiag.agent.captures import capturing as captures
from nsadiag.agent.captures.failure import CaptureError
from nsadiag.agent.captures.gpu import cuda_core, gpus, nccl_ras
from nsadiag.agent.captures.python import py_spy
from nsadiag.agent.captures.target import Target
from nsadiag.agent.captures.worker_server import WorkerServer
from nsadiag.agent.checkup import patient
from nsadiag.agent.job import scratch
from nsadiag.cluster.link import Link
from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.wire import ServerGreeting
from nsadiag.cluster.ship import Shipment
from nsadiag.commands.messages import notify
from nsadiag.deadlines import programs
from nsadiag.deadlines.calls import call
from nsadiag.deadlines.deadline import Deadline
from nsadiag.engines import slurm, slurm_steps
from nsadiag.errors import MachineError
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.experiments import commits

LIMIT_S = 1.0
# A busy machine may be late by this; a peer that is waited for would never end.
LATE_S = 30.0
DRIP_S = 0.1
# Writes a byte now and then, and so does a child of it, which holds the same pipes and may be in a session of its own.
DRIPS = f"""\
import os, sys, time
if os.fork() == 0:
    os.setsid() if "apart" in sys.argv else None
while True:
    os.write(1, b"x")
    os.write(2, b"y")
    time.sleep({DRIP_S})
"""


@contextlib.contextmanager
def within_its_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took < seconds + LATE_S, f"{took:.1f} s, and the limit is {seconds:g} s"


@pytest.fixture(params=["together", "apart"])
def dripping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A folder in which every program drips; it is the first on PATH."""
    script, pids = tmp_path / "drips.py", tmp_path / "pids"
    script.write_text(f"import os\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n{DRIPS}")
    script.write_text(
        script.read_text().replace(
            "while True", f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\nwhile True"
        )
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("py-spy", "nvidia-smi", "cuda-gdb", "squeue", "srun", "scontrol", "git", "tell", "python3"):
        (folder / name).write_text(f"#!/bin/sh\nexec {sys.executable} {script} {request.param}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    yield folder
    for pid in {int(line) for line in pids.read_text().split()} if pids.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def dripping_server(family: int, at: Any, beginning: bytes = b"") -> Iterator[Any]:
    """A server that sends its beginning, and then a byte now and then for as long as anybody listens."""
    over, taken = threading.Event(), []

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(beginning)
            while not over.wait(DRIP_S):
                connection.sendall(b"x")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                taken.append(connection)
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.socket(family) as server:
        server.bind(at)
        server.listen()
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


# -- programs ---------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_program_that_drips_is_ended_at_its_deadline_with_what_it_started(tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-c",
        f"import os; print(os.getpid(), flush=True)\n{DRIPS}".replace(
            "while True", "print(os.getpid(), flush=True)\nwhile True"
        ),
    ]
    with within_its_limit(3.0), pytest.raises(programs.Unfinished) as late:
        programs.run(line, seconds=3.0)
    pids = [int(number) for number in re.findall(r"^x*(\d+)$", late.value.stdout, re.MULTILINE)]
    assert len({*pids}) == 2, late.value.stdout
    assert "y" in late.value.stderr
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), "the end of both")


def test_a_program_that_has_ended_is_not_waited_for_because_its_child_holds_the_pipe() -> None:
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000']).pid)"
    with within_its_limit():
        done = programs.run([sys.executable, "-c", child], seconds=GIVE_UP_S)
    assert done.returncode == 0
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_program_that_is_stopped_or_reads_nothing_is_ended_at_its_deadline() -> None:
    stopped = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    for code in (stopped, "import time; time.sleep(1000)"):
        with within_its_limit(), pytest.raises(programs.Unfinished):
            programs.run([sys.executable, "-c", code], text="x" * 2**20, seconds=LIMIT_S)


def test_a_program_that_writes_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST_OUTPUT", 2**20)
    with within_its_limit(), pytest.raises(OSError, match="more than 1 MiB"):
        programs.run(["yes"], seconds=GIVE_UP_S)


def test_a_program_gets_its_text_whole_and_its_answer_comes_back_whole() -> None:
    text = "a line with é\n" * 200_000
    done = programs.run(["sh", "-c", "cat; echo said >&2; exit 3"], text=text, seconds=GIVE_UP_S)
    assert (done.returncode, done.stdout, done.stderr) == (3, text, "said\n")


def test_a_program_may_end_in_good_order_where_it_is_given_time() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('in order', flush=True)))\nwhile True: time.sleep(0.1)"
    with within_its_limit(3.0), pytest.raises(programs.Unfinished) as late:
        programs.run([sys.executable, "-c", code], seconds=3.0, grace_s=GIVE_UP_S)
    assert late.value.stdout == "in order\n"


def asks_py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(py_spy.NAMED, str(folder / "py-spy"))
    monkeypatch.setattr(py_spy, "TIMEOUT_S", LIMIT_S)
    with pytest.raises(CaptureError, match="py-spy gave no answer in 1 s"):
        py_spy.nonblocking_stacks(os.getpid())


def asks_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    with pytest.raises(CaptureError, match="NVIDIA driver gave no answer"):
        gpus.state()


def asks_cuda_gdb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_core, "SUMMARY_S", LIMIT_S)
    with pytest.raises(CaptureError, match="cuda-gdb gave no answer"):
        cuda_core._summary(folder / "cuda.core")


def asks_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_steps, "ASK_S", LIMIT_S)
    with pytest.raises(MachineError, match="squeue does not answer"):
        slurm_steps.running_job("4711")
    monkeypatch.setattr(slurm, "ASK_S", LIMIT_S)
    assert "gave no answer" in slurm._ask("scontrol").stderr


def starts_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_steps, "STEP_S", LIMIT_S)
    job = slurm_steps.RunningJob(job_id="1", nodes=["a"])
    assert set(slurm_steps.on_each_node(job, ["true"])) <= {"y"}


def asks_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "GIT_S", LIMIT_S)
    with pytest.raises(MachineError, match="git gave no answer in 1 s"):
        commits.top_of(folder)


def notifies_by_a_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SECONDS", LIMIT_S)
    notifier(f"{folder / 'tell'}").verdict(HUNG)


def tries_a_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scratch.made() as sockets:
        run = RunDir(path=folder / "run")
        ours = patient.Patient(str(folder / "python3"), run, sockets, 0, "")
        with pytest.raises(TimeoutError, match="no word from Python in 1 s"):
            ours.report(LIMIT_S)
        ours.end()


@pytest.mark.parametrize(
    "asks",
    [
        asks_py_spy, asks_nvidia_smi, asks_cuda_gdb, asks_squeue, starts_a_step, asks_git, notifies_by_a_command,
        tries_a_python,
    ],
)  # fmt: skip
def test_each_program_that_nsadiag_runs_has_a_limit_that_dripping_does_not_move(
    asks: Callable[[Path, pytest.MonkeyPatch], None], dripping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with within_its_limit():
        asks(dripping, monkeypatch)


# -- connections ------------------------------------------------------------------------------------

HTTP = b"HTTP/1.1 200 OK\r\nX-Long: "
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


def notifier(*targets: str) -> notify.Notifier:
    return notify.Notifier(targets=targets, run=RunDir(path=Path()), name="train")


@pytest.mark.parametrize("beginning", [b"", HTTP, BODY])
def test_a_webhook_that_drips_holds_no_verdict_longer_than_its_limit(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notify, "SECONDS", LIMIT_S)
    with dripping_server(socket.AF_INET, ("127.0.0.1", 0), beginning) as (_, port):
        with within_its_limit():
            # Several take no longer than one.
            notifier(*[f"http://127.0.0.1:{port}/x"] * 40).verdict(HUNG)
    said = capsys.readouterr().err.splitlines()
    if beginning != BODY:  # of that, the first byte is enough
        assert [line.partition(": ")[2].partition(" (")[0] for line in said] == ["--notify failed"] * 40


def test_a_suspicion_is_passed_on_without_a_moment_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping_server(socket.AF_INET, ("127.0.0.1", 0), HTTP) as (_, port):
        told = notifier(f"http://127.0.0.1:{port}/x", f"{sys.executable} -c 'import time; time.sleep(1000)'")
        monkeypatch.setattr(notify, "SECONDS", GIVE_UP_S)
        with within_its_limit(0.0):
            told.tell("suspected", "no progress")
        monkeypatch.setattr(notify, "SECONDS", LIMIT_S)
        with within_its_limit():
            told.verdict(HUNG)


@pytest.mark.parametrize("beginning", [b"", HTTP, BODY])
def test_a_worker_server_that_drips_is_a_gap_at_its_limit(
    beginning: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dripping_server(socket.AF_UNIX, str(tmp_path / "sock"), beginning):
        server = WorkerServer(tmp_path / "sock")
        with within_its_limit(2.0), pytest.raises(CaptureError):
            server.handlers()
        server._offered = frozenset({"fr_trace_json"})
        server._silent = None
        with within_its_limit(), pytest.raises(CaptureError):
            server.ask("fr_trace_json", timeout_s=LIMIT_S)


@pytest.mark.parametrize("beginning", [b"", b"SERVER PROTOCOL 2\nOK\nOK\n"])
def test_nccls_service_that_drips_is_a_gap_at_its_limit(beginning: bytes) -> None:
    with dripping_server(socket.AF_INET, ("127.0.0.1", 0), beginning) as (host, port):
        with within_its_limit(), pytest.raises(CaptureError, match="no answer in 1 s"):
            nccl_ras.ask(host, port, Deadline(LIMIT_S))


def test_evidence_for_a_node_0_that_takes_a_byte_at_a_time_stays_at_the_deadline(tmp_path: Path) -> None:
    """It pings all the while, so it does not count as silent."""
    (tmp_path / "ranks/00001").mkdir(parents=True)
    for number in range(3):
        (tmp_path / f"ranks/00001/{number}.bin").write_bytes(os.urandom(20 * 2**20))
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        connection = Connection(accepted, ServerGreeting(TOKEN))
        while connection.frames is None and not over.wait(0.01):
            connection.flush()
            connection.receive()
        connection.flush()
        while not over.wait(DRIP_S):
            with contextlib.suppress(BlockingIOError):
                accepted.recv(1)
            connection.send({"kind": "ping", "at": 0})
            connection.flush()
        accepted.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        link = Link(TOKEN, listener.getsockname(), 1, "a")
        wait_until(lambda: link.is_connected, "the link")
        with within_its_limit():
            shipped = Shipment(link, "hostb", Deadline(LIMIT_S)).send(tmp_path, ".")
        over.set()
        link.close()
    assert shipped.left == [f"ranks/00001/{number}.bin: not sent within 1 s" for number in range(3)]


TOKEN = "the token of these tests"


# -- whatever has no limit of its own ---------------------------------------------------------------


def test_a_capture_that_waits_for_a_file_is_a_gap_and_the_others_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opened for reading, it waits for a writer

    def reads(target: Target) -> None:
        pipe.read_bytes()

    monkeypatch.setitem(captures.CAPTURES, "fr", reads)
    monkeypatch.setattr(captures, "LIMIT_S", LIMIT_S)
    directory = RunDir(path=tmp_path).rank(0).capture(1)
    with within_its_limit(2.0):
        captures.capture_rank(Target(pid=os.getpid(), directory=directory, socket=None), ("fr", "proc"))
    assert [gap["gap"] for gap in read_json(directory.gaps, [])] == ["no answer within 1 s"]
    assert read_json(directory.answers, {})["sources"]["proc"]["answered"]
    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_call_passes_on_what_it_returns_or_raises() -> None:
    assert call(lambda: 1 + 1, GIVE_UP_S) == 2
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 // 0, GIVE_UP_S)


# -- the command ------------------------------------------------------------------------------------


def test_a_run_ends_with_the_jobs_exit_code_though_its_webhook_drips(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import time, torch\nopen('ended', 'w').close()\nraise SystemExit(7)\n")
    with dripping_server(socket.AF_INET, ("127.0.0.1", 0), HTTP) as (_, port):
        hook = f"http://127.0.0.1:{port}/x"
        with within_its_limit(notify.SECONDS + GIVE_UP_S / 2):
            done = jobs.run(
                "run",
                "--passthrough",
                "--out",
                tmp_path / "run",
                "--notify",
                hook,
                "--",
                sys.executable,
                tmp_path / "job.py",
            )
    assert done.returncode == 7
    assert "--notify failed: no answer within 10 s" in done.stderr

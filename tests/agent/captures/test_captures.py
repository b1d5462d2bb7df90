"""What is collected from outside: from ranks that compute, hold the GIL, are stopped or gone, and from the machine."""

import contextlib
import ctypes
import dataclasses
import http.server
import json
import os
import pickle
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs import wait_until

import nsadiag
from nsadiag.agent.captures.capturing import QUICK, THOROUGH, capture_all, capture_node, capture_rank
from nsadiag.agent.captures.gpu import core_files, nccl_ras
from nsadiag.agent.captures.gpu import cuda_core as cuda_core_capture
from nsadiag.agent.captures.gpu import gpus as gpu_capture
from nsadiag.agent.captures.kernel import sleeping
from nsadiag.agent.captures.kernel.cgroups import _version_1, _version_2, cgroup
from nsadiag.agent.captures.kernel.descriptors import descriptors
from nsadiag.agent.captures.python.py_spy import find_py_spy
from nsadiag.agent.captures.python.traceback import catches, rests
from nsadiag.agent.captures.target import CaptureError, NodeTarget, NotApplicable, Target
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.layout import CaptureDir, RunDir, make_private_dir, read_json
from nsadiag.evidence.pickles import read_pickle
from nsadiag.worker.failures.traceback_signal import NUMBER

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"
HOST = os.uname().nodename

# A lock taken twice, in C and without letting go of the GIL: no Python thread runs from here on.
# A regular expression that backtracks for years.
SPIN_WITH_THE_GIL = """
import re
def spin_for_ever_in_c(): re.match(r'(a+)+$', 'a' * 60 + 'b')
"""
HOLD_THE_GIL = """
import ctypes
lock, c = ctypes.create_string_buffer(128), ctypes.PyDLL(None)
c.pthread_mutex_lock(lock)
def wait_for_ever_in_c():
    c.pthread_mutex_lock(lock)
"""


class Rank:
    """A process with our worker in it, and nobody watching."""

    def __init__(self, folder: Path, script: str, **environment: str) -> None:
        make_private_dir(folder / "sockets")
        self.run = RunDir(path=folder / "run")
        own = {
            "NSADIAG_RUN_DIR": str(self.run.path), "NSADIAG_SOCKET_DIR": str(folder / "sockets"),
            "PYTHONPATH": str(BOOTSTRAP), "RANK": "0", "WORLD_SIZE": "1", **environment,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", script], env={**os.environ, **own}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.socket = folder / "sockets/0.sock"

    def look(self, number: int, *names: str, **options: Any) -> CaptureDir:
        directory = self.run.rank(0).capture(number)
        target = Target(pid=self.process.pid, directory=directory, socket=self.socket, **options)
        capture_rank(target, names or QUICK)
        return directory

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    started: list[Rank] = []

    def start(script: str, **environment: str) -> Rank:
        started.append(Rank(tmp_path, script, **environment))
        return started[-1]

    yield start
    for rank in started:
        rank.close()


WITHOUT_PY_SPY = tuple(name for name in QUICK if name != "py_spy")


def gaps(directory: CaptureDir) -> dict[str, dict[str, Any]]:
    return {row["capture"]: row for row in read_json(directory.gaps, [])}


def in_a_state(rank: Rank, states: str) -> Callable[[], bool]:
    return lambda: Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(") ")[2][0] in states


def stuck_in(rank: Rank, function: str) -> None:
    """Waits until the rank is where it will stay."""
    dump = [find_py_spy(), "dump", "--pid", str(rank.process.pid)]
    wait_until(
        lambda: function in subprocess.run(dump, capture_output=True, text=True, check=False).stdout, function
    )


def look_by_signal(rank: Rank, number: int) -> CaptureDir:
    """A look without py-spy, at a moment when the rank rests: only then it is signalled."""
    found: list[CaptureDir] = []

    def looked() -> bool:
        found.append(rank.look(number + len(found), *WITHOUT_PY_SPY))
        return bool(read_json(found[-1].answers)["sources"]["traceback"].get("by") == "signal")

    wait_until(looked, "a rank at rest")
    return found[-1]


# -- who answers, and what that says --------------------------------------------------------------


def test_a_rank_that_holds_the_gil_is_seen_by_its_c_endpoints_and_by_name(ranks: Callable[..., Rank]) -> None:
    rank = ranks(f"import torch\n{HOLD_THE_GIL}\nprint('ready')\nwait_for_ever_in_c()")
    stuck_in(rank, "wait_for_ever_in_c")
    look = rank.look(1)
    answers = read_json(look.answers)
    answered = {name for name, row in answers["sources"].items() if row["answered"]}
    assert (
        answered == {*QUICK} - {"traceback", "python", "workers"}
        and "py-spy" in answers["sources"]["traceback"]["why"]
    )
    assert (answers["gil_owner"]["function"], answers["reads_as"]) == ("wait_for_ever_in_c", "gil_owned")
    assert isinstance(read_json(look.counters), dict)
    assert read_json(look.proc)["mutex_held_by"] == rank.process.pid
    assert not look.gaps.exists()
    # torch's own handler would wait for the GIL, for ever.
    blind = look_by_signal(rank, 2)
    assert "wait_for_ever_in_c" in blind.traceback.read_text()


def test_what_would_answer_in_python_is_asked_once_when_one_line_keeps_the_lock(
    ranks: Callable[..., Rank],
) -> None:
    rank = ranks(f"import torch\n{SPIN_WITH_THE_GIL}\nprint('ready')\nspin_for_ever_in_c()")
    stuck_in(rank, "spin_for_ever_in_c")
    first, second, third = (rank.look(number) for number in (1, 2, 3))
    assert "in the previous snapshot" in read_json(first.answers)["sources"]["python"]["why"]
    assert "no answer" in gaps(second)["python"]["gap"]
    assert not third.gaps.exists()
    assert "asked before" in read_json(third.answers)["sources"]["python"]["why"]


def test_of_a_rank_that_sleeps_with_the_lock_nothing_is_asked_in_python(ranks: Callable[..., Rank]) -> None:
    rank = ranks(f"import torch\n{HOLD_THE_GIL}\nprint('ready')\nwait_for_ever_in_c()")
    stuck_in(rank, "wait_for_ever_in_c")
    rank.look(1)
    assert "sleeps" in read_json(rank.look(2).answers)["sources"]["python"]["why"]


def test_stacks_come_by_a_signal_that_the_jobs_own_threads_do_not_notice(ranks: Callable[..., Rank]) -> None:
    rank = ranks(
        "import signal, torch\ndef waits():\n    print('ready')\n    signal.pause()\nwaits()\nprint('woken')"
    )
    stuck_in(rank, "waits")
    for number in (1, 50):
        look = look_by_signal(rank, number)
        assert read_json(look.answers)["reads_as"] == "answers"
        assert look.traceback.read_text().count("in waits") == 1
    stuck_in(rank, "waits")
    assert rank.process.poll() is None


def test_without_torch_nobody_is_signalled_and_the_gap_says_why(ranks: Callable[..., Rank]) -> None:
    rank = ranks(
        "import signal\ndef waits():\n    print('ready')\n    signal.pause()\nwaits()\nprint('woken')"
    )
    stuck_in(rank, "waits")
    look = rank.look(1, *WITHOUT_PY_SPY)
    assert {"fr", "counters", "traceback"} == set(gaps(look))
    assert rank.process.poll() is None
    stuck_in(rank, "waits")


def test_a_rank_that_runs_is_never_signalled(ranks: Callable[..., Rank]) -> None:
    # Frames that come and go while faulthandler reads them would end the process.
    rank = ranks(
        "import torch\nprint('ready')\ndef works(n):\n    return n and works(n - 1)\nwhile True:\n    works(50)"
    )
    for number in (1, 3):
        look = rank.look(number, *WITHOUT_PY_SPY)
        assert read_json(look.answers)["sources"]["traceback"]["by"] == "worker server"
        assert "<module>" in look.traceback.read_text()
        assert "py-spy" in read_json(rank.look(number + 1).answers)["sources"]["traceback"]["why"]
    assert rank.run.rank(0).tracebacks.read_bytes() == b"" and rank.process.poll() is None


def test_no_signal_is_sent_to_a_rank_that_does_not_catch_it(ranks: Callable[..., Rank]) -> None:
    forget = f"import signal; signal.signal({int(NUMBER)}, signal.SIG_DFL)"
    rank = ranks(f"{forget}\nprint('ready')\ninput()")
    wait_until(lambda: rests(rank.process.pid), "a rank at rest")
    look = rank.look(1, *WITHOUT_PY_SPY)
    assert "no handler for a signal" in gaps(look)["traceback"]["gap"]
    assert rank.process.poll() is None and not catches(rank.process.pid, NUMBER)


def test_a_signal_that_the_job_has_a_use_for_is_left_to_it(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
signal.signal({int(NUMBER)}, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-u", "-c", "print('ready'); input()"])
"""
    # The shell's part: what is ignored stays ignored across exec, and Python starts with it.
    rank = Rank(tmp_path, script)
    try:
        wait_until(
            lambda: read_json(rank.run.rank(0).meta, {}).get("traceback_signal", 1) is None,
            "the second start",
        )
        assert not catches(rank.process.pid, NUMBER)
    finally:
        rank.close()


def test_a_stopped_rank_costs_seconds_and_its_silence_is_evidence(ranks: Callable[..., Rank]) -> None:
    rank = ranks("import torch\nprint('ready')\ninput()")
    os.kill(rank.process.pid, signal.SIGSTOP)
    wait_until(in_a_state(rank, "T"), "stopped")
    started = time.monotonic()
    look = rank.look(1)
    assert time.monotonic() - started < 30
    answers = read_json(look.answers)
    assert (answers["state"], answers["reads_as"]) == ("T", "stopped")
    assert answers["sources"]["proc"]["answered"] and answers["sources"]["py_spy"]["answered"]
    assert "no answer in" in gaps(look)["fr"]["gap"]
    assert gaps(look)["fr"]["evidence"] == {"state": "T"} and gaps(look)["fr"]["seconds"] > 0
    os.kill(rank.process.pid, signal.SIGCONT)
    wait_until(lambda: read_json(rank.look(2).answers)["reads_as"] == "answers", "going on unharmed")


def test_a_process_that_is_gone_leaves_gaps_and_no_exception(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    directory = RunDir(path=tmp_path).rank(0).capture(1)
    capture_all([Target(pid=gone.pid, directory=directory, socket=tmp_path / "none.sock")], native=True)
    assert gaps(directory)["proc"]["gap"] == "the process is gone"
    assert gaps(directory)["proc"]["evidence"] == {"state": "gone"}
    assert read_json(directory.answers)["reads_as"] == "silent"
    # What there is none of here is no gap: no pickles from a server that is not there is one, no GPU is not.
    assert "cuda_core" not in gaps(directory) and "children" not in gaps(directory)


def test_the_first_look_pauses_nobody_and_the_second_does(ranks: Callable[..., Rank]) -> None:
    rank = ranks("print('ready')\ninput()")
    targets = [
        Target(pid=rank.process.pid, directory=rank.run.rank(0).capture(n), socket=None) for n in (1, 2)
    ]
    capture_all(targets[:1], native=False)
    capture_all(targets[1:], native=True)
    paused = [read_json(t.directory.answers)["sources"]["py_spy"]["paused"] for t in targets]
    assert paused == [False, True]
    assert not targets[0].directory.native.exists() and "input" in targets[1].directory.native.read_text()
    assert read_json(rank.run.node_capture(HOST, 1).answers)["sources"].keys() == {"ras", "gpu"}


def test_locals_are_in_the_stacks_only_on_request_and_secret_ones_never(ranks: Callable[..., Rank]) -> None:
    rank = ranks("def work():\n    api_key = 'abcd'; batch = 4711\n    print('ready')\n    input()\nwork()")
    assert "4711" not in rank.look(1, "py_spy").py_spy.read_text()
    asked = rank.look(2, "py_spy", with_locals=True).py_spy.read_text()
    assert "4711" in asked and "abcd" not in asked


# -- the kernel's view ----------------------------------------------------------------------------


def test_descriptors_tell_peers_pipes_and_places_in_files(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "read").open("wb+") as file:
        with socket.create_connection(server.getsockname()) as client:
            file.write(b"0123456789")
            file.seek(4)
            ends = os.pipe()
            found = descriptors(os.getpid())
            by_number = {row["fd"]: row for row in found["open"]}
            port = server.getsockname()[1]
            assert by_number[server.fileno()]["state"] == "LISTEN"
            assert by_number[client.fileno()] | {"local": ""} == {
                "fd": client.fileno(), "kind": "tcp", "local": "", "peer": f"127.0.0.1:{port}",
                "state": "ESTABLISHED", "unsent": 0, "unread": 0,
            }  # fmt: skip
            assert (by_number[file.fileno()]["path"], by_number[file.fileno()]["position"]) == (file.name, 4)
            assert [by_number[end]["kind"] for end in ends] == ["pipe", "pipe"]
            for end in ends:
                os.close(end)


def test_descriptors_are_counted_all_and_listed_in_part() -> None:
    opened = [os.pipe() for _ in range(100)]
    found = descriptors(os.getpid())
    assert found["count"] >= 200 and found["kinds"]["pipe"] >= 200
    assert len(found["open"]) == 64 and found["not_listed"] >= 136
    for end in (end for pair in opened for end in pair):
        os.close(end)


def test_memory_limits_are_read_from_either_kind_of_cgroup(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text("1073741824\n")
    (tmp_path / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("2000\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    one, two = _version_1(tmp_path), _version_2(tmp_path)
    assert (one["limit_bytes"], one["used_bytes"], one["oom_kills"]) == (2**30, 1000, 2)
    assert (two["limit_bytes"], two["used_bytes"], two["oom_kills"]) == (None, 2000, 1)
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert _version_1(tmp_path)["limit_bytes"] is None
    here = cgroup(os.getpid())
    assert set(here) == {"version", "limit_bytes", "used_bytes", "oom_kills", "events", "pressure"}
    assert set(here["pressure"]) == {"cpu", "io", "memory"}


def test_children_of_a_rank_are_looked_at_and_other_programs_are_not(ranks: Callable[..., Rank]) -> None:
    script = """
import subprocess, sys
worker = "def fetch_next_sample():\\n    print('up', flush=True)\\n    input()\\nfetch_next_sample()"
workers = [subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
other = subprocess.Popen(["sleep", "1000"])
for process in workers: process.stdout.readline()
print("ready")
input()
"""
    rank = ranks(script)
    look = rank.look(1, "proc", "children")
    assert read_json(look.answers)["sources"]["children"] | {"ms": 0} == {
        "answered": True, "ms": 0, "seen": 2, "of": 2, "failures": [],
    }  # fmt: skip
    found = load_cell(rank.run.path).rank(0).captures[0].children
    assert len(found) == 2
    for child in found:
        assert child.proc.pid == child.number
        assert "fetch_next_sample" in [f.name for thread in child.stacks for f in thread.frames]


def test_a_worker_that_runs_while_its_rank_waits_for_a_batch_is_looked_at(ranks: Callable[..., Rank]) -> None:
    script = """
import os, sys, threading, time
import torch
rank = os.getpid()
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        while os.getppid() == rank: pass
batches = iter(torch.utils.data.DataLoader(Samples(), num_workers=1))
main = threading.get_ident()
def tell():
    while sys._current_frames()[main].f_code.co_name != "select": time.sleep(0.01)
    print("ready", flush=True)
threading.Thread(target=tell, daemon=True).start()
next(batches)
"""
    rank = ranks(script)
    for number in (1, 2):
        rank.look(number, "proc", "py_spy", "workers")
    looks = load_cell(rank.run.path).rank(0).captures
    assert "__getitem__" in looks[0].children[0].main_frames[0].name
    told = [look.answers.of("workers") for look in looks]
    assert [(each.seen, list(each.values or ())) for each in told] == 2 * [
        (1, [str(looks[0].children[0].number)])
    ]
    # The same values are told by the same digest, and by nothing else.
    assert told[0].values == told[1].values
    (calls,) = (told[0].calls or {}).values()
    assert [function.rpartition(".")[2] for _, function, _ in calls][-1] == "__getitem__"
    assert told[1].calls == told[0].calls, "one and the same call"
    assert not any(frame.locals for frame in looks[0].children[0].main_frames)


# -- flight-recorder pickles ----------------------------------------------------------------------


@contextlib.contextmanager
def worker_server(path: Path, handlers: dict[str, bytes]) -> Iterator[list[str]]:
    """A server with torch's two routes, for handlers that only a GPU's torch has; yields what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(json.dumps(list(handlers)).encode())

        def do_POST(self) -> None:
            asked.append(self.path)
            self.answer(handlers[self.path.removeprefix("/handler/").partition("?")[0]])

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with socketserver.UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("held", [False, True])
def test_stacks_are_not_asked_of_torch_while_a_thread_owns_the_gil(tmp_path: Path, held: bool) -> None:
    directory = RunDir(path=tmp_path).rank(0).capture(1)
    directory.path.mkdir(parents=True)
    directory.py_spy.write_text(json.dumps([{"owns_gil": held, "frames": []}]))
    dump = pickle.dumps({"entries": [{"frames": [], "state": "started"}]}, 2)
    with worker_server(tmp_path / "sock", {"dump_nccl_trace_pickle": dump}) as asked:
        capture_rank(Target(pid=os.getpid(), directory=directory, socket=tmp_path / "sock"), ("fr_pickle",))
    assert asked == ["/handler/dump_nccl_trace_pickle" + ("?includestacktraces=false" if held else "")]
    assert read_json(directory.answers)["sources"]["fr_pickle"]["stacks"] is not held
    assert read_pickle(directory.flight_recorder_pickle)["entries"][0]["state"] == "started"


# -- NCCL's RAS -----------------------------------------------------------------------------------


Reply = bytes | None  # None: nothing, for ever


@contextlib.contextmanager
def ras_server(replies: Callable[[str], Reply]) -> Iterator[int]:
    """Speaks as src/ras/client_support.cc of NCCL does: a line for each command; closes after the status."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                converse(server.accept()[0])

    def converse(connection: socket.socket) -> None:
        with connection, connection.makefile("r") as lines:
            for line in lines:
                reply = replies(line.rstrip("\n"))
                if reply is None:
                    over.wait(60)
                    return
                connection.sendall(reply)
                if line.strip().upper().endswith("STATUS") or not reply:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        over.set()
        # Wakes who waits in accept; closing alone would not.
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()


def as_nccl(status: bytes, *, knows_json: bool = True) -> Callable[[str], Reply]:
    def reply(command: str) -> Reply:
        if command.startswith("CLIENT PROTOCOL"):
            return b"SERVER PROTOCOL 2\n"
        if command == "VERBOSE STATUS":
            return status
        if command.startswith("SET FORMAT") and not knows_json:
            return b"ERROR: Unknown command SET FORMAT json\n"
        return b"OK\n"

    return reply


@pytest.fixture
def node(tmp_path: Path) -> NodeTarget:
    directory = RunDir(path=tmp_path).node_capture(HOST, 1)
    directory.path.mkdir(parents=True)
    # No machine has a process of that number.
    return NodeTarget(directory=directory, pids=(9004711,))


def ask_ras(
    monkeypatch: pytest.MonkeyPatch, node: NodeTarget, replies: Callable[[str], Reply]
) -> dict[str, Any]:
    with ras_server(replies) as port:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{port}")
        return nccl_ras.ras(node)


def test_ras_is_asked_for_json(monkeypatch: pytest.MonkeyPatch, node: NodeTarget) -> None:
    status = {"nccl_version": "2.28.3", "communicators": [{"ranks": [{"rank": 0, "pid": 9004711}] * 5000}]}
    assert ask_ras(monkeypatch, node, as_nccl(json.dumps(status).encode()))["format"] == "json"
    assert read_json(node.directory.ras) == status


def test_an_older_nccl_answers_in_text(monkeypatch: pytest.MonkeyPatch, node: NodeTarget) -> None:
    text = b"NCCL version 2.24.3\n\nJob summary\n  rank 0 pid 9004711 on host x\n"
    assert ask_ras(monkeypatch, node, as_nccl(text, knows_json=False))["format"] == "text"
    assert node.directory.ras_text.read_bytes() == text


def test_the_comma_that_nccl_leaves_out_where_ranks_are_missing_is_put_in(
    monkeypatch: pytest.MonkeyPatch, node: NodeTarget
) -> None:
    # NCCL 2.28.9, of a communicator one of whose ranks has left it.
    text = b"""{
  "communicators": [
    {
      "ranks": [
        {
          "rank": 0,
          "pid": 9004711
        }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "192.0.2.2",
          "pid": 9004712,
          "nvml_dev": 1
          "status": {
            "unresponsive": false,
            "considered_dead": false
          }
        }
      ]
    }
  ]
}
"""
    assert ask_ras(monkeypatch, node, as_nccl(text))["format"] == "json"
    missing = read_json(node.directory.ras)["communicators"][0]["missing_ranks"]
    status = {"unresponsive": False, "considered_dead": False}
    assert missing == [{"rank": 1, "host": "192.0.2.2", "pid": 9004712, "nvml_dev": 1, "status": status}]


def test_ras_is_asked_until_our_own_job_answers(monkeypatch: pytest.MonkeyPatch, node: NodeTarget) -> None:
    answers = iter([b'{"pid": 1}', b'{"pid": 2}', b'{"pid": 9004711}'])

    def reply(command: str) -> Reply:
        return next(answers) if command == "VERBOSE STATUS" else as_nccl(b"")(command)

    assert ask_ras(monkeypatch, node, reply)["format"] == "json"
    assert read_json(node.directory.ras) == {"pid": 9004711}


def test_another_jobs_ras_is_no_gap_of_a_job_without_nccl(
    monkeypatch: pytest.MonkeyPatch, node: NodeTarget
) -> None:
    asleep = subprocess.Popen(["sleep", "60"])
    try:
        ours = dataclasses.replace(node, pids=(asleep.pid,))
        with pytest.raises(NotApplicable, match="has loaded NCCL"):
            ask_ras(monkeypatch, ours, as_nccl(b'{"pid": 1}'))
    finally:
        asleep.kill()
        asleep.wait()
    assert not node.directory.ras.exists()


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (lambda _: None, "no answer in"),
        (lambda _: b"", "closed the connection"),
        (lambda _: b"SSH-2.0-OpenSSH_9.6\r\n", "something else answers"),
        (as_nccl(b'{"pid": 9004711, "half": [1'), "no valid JSON"),
        (as_nccl(b'{"pid": 1}'), "another job"),
        (as_nccl(b'{"pid": 90047110}'), "another job"),
    ],
)
def test_a_ras_that_does_not_answer_well_is_a_gap(
    monkeypatch: pytest.MonkeyPatch, node: NodeTarget, replies: Callable[[str], Reply], why: str
) -> None:
    monkeypatch.setattr(nccl_ras, "TOTAL_S", 0.5)
    with pytest.raises(CaptureError, match=why) as error:
        ask_ras(monkeypatch, node, replies)
    assert not isinstance(error.value, NotApplicable)


def test_where_nobody_listens_there_is_no_nccl_and_no_gap(
    monkeypatch: pytest.MonkeyPatch, node: NodeTarget
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{free}")
    capture_node(node)
    assert "no NCCL RAS" in read_json(node.directory.answers)["sources"]["ras"]["why"]
    assert "ras" not in gaps(node.directory)


@pytest.mark.parametrize("text", ["", "nonsense", "host:", ":28028", "host:port"])
def test_an_address_that_is_none_is_told(text: str) -> None:
    with pytest.raises(CaptureError, match="NCCL_RAS_ADDR"):
        nccl_ras.address(text)
    assert nccl_ras.address("[::1]:28028") == ("::1", 28028)


# -- GPUs -----------------------------------------------------------------------------------------


# What `nvidia-smi` prints for these queries on two H200s, one of them at work.
NVIDIA_SMI = r"""#!/bin/sh
case "$1" in
  --query-gpu=*) cat <<'END'
0, GPU-aa, NVIDIA H200, 00000000:18:00.0, 97, 31, 64210, 143771, 1980, 3201, 512.33, 700.00, 55, 0x0000000000000044, 0
1, GPU-bb, NVIDIA H200, 00000000:2A:00.0, 0, 0, 4, 143771, 345, 3201, 77.01, 700.00, 31, 0x0000000000000001, [N/A]
END
  ;;
  --query-compute-apps=*) echo "GPU-aa, 4711, 64200" ;;
  pmon) printf '# gpu pid type sm mem enc dec jpg ofa command\n# Idx # C/G %% %% %% %% %% %% name\n 0 4711 C 93 28 - - - - python\n 1 - - - - - - - - -\n' ;;
esac
"""


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_gpus_are_read_from_nvidia_smi_where_there_is_no_pynvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "nvidia-smi", NVIDIA_SMI, monkeypatch)
    monkeypatch.setattr(gpu_capture, "QUERY", tmp_path / "no such file")
    document, by = gpu_capture.state()
    busy, idle = document["devices"]
    assert by == "nvidia-smi"
    assert (busy["index"], busy["uuid"], busy["utilisation_pct"], busy["memory_used_mib"]) == (
        0,
        "GPU-aa",
        97,
        64210,
    )
    assert busy["processes"] == [{"pid": 4711, "memory_mib": 64200, "sm_pct": 93}]
    assert busy["throttled_by"] == ["power cap", "hardware thermal"] and idle["throttled_by"] == ["idle"]
    assert idle["processes"] == [] and idle["uncorrected_ecc_errors"] is None
    assert gpu_capture.gpu_activity(document) == {4711: 93.0}
    busy["processes"][0]["sm_pct"] = None
    assert gpu_capture.gpu_activity(document) == {4711: 97.0}


def test_a_driver_that_never_returns_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "nvidia-smi", "#!/bin/sh\nexec sleep 1000\n", monkeypatch)
    monkeypatch.setattr(gpu_capture, "QUERY", tmp_path / "no such file")
    monkeypatch.setattr(gpu_capture, "TIMEOUT_S", 0.3)
    with pytest.raises(CaptureError, match=r"no answer in 0\.3 s"):
        gpu_capture.state()


def test_the_drivers_error_reports_are_found_in_the_kernels_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        (12.5, "usb 1-1: new high-speed USB device"),
        (
            99.0,
            "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ),
        (None, "NVRM: Xid (PCI:0000:18:00): 31, pid=4711, name=python, Ch 00000008, MMU Fault"),
    ]
    monkeypatch.setattr(gpu_capture, "kernel_log", lambda: (lines, None))
    found, gap = gpu_capture.xid_errors()
    assert [(row["t_boot_s"], row["pci"], row["xid"]) for row in found] == [
        (99.0, "0000:65:00", 79),
        (None, "0000:18:00", 31),
    ]
    assert "fallen off the bus" in found[0]["text"] and gap is None


def test_the_kernels_log_is_read_or_the_reason_told() -> None:
    lines, gap = gpu_capture.kernel_log()
    assert (gap is None) or "may not be read" in gap
    assert lines == [] or all(isinstance(text, str) for _, text in lines)


# -- core dumps of a GPU --------------------------------------------------------------------------


def driver(pipe: Path, core: Path, pieces: int) -> threading.Thread:
    """Does as CUDA's: waits at its pipe, then writes the dump piece by piece."""
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def dump() -> None:
        wait_until(lambda: _readable(reader), "a byte in the pipe")
        with core.open("wb") as file:
            for _ in range(pieces):
                file.write(b"x" * 1000)
                file.flush()
                time.sleep(0.1)
        os.close(reader)

    thread = threading.Thread(target=dump)
    thread.start()
    return thread


def _readable(handle: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(handle, 1))
    return False


def test_a_core_dump_is_waited_for_until_whole_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "cuda-gdb", '#!/bin/sh\necho "$@"\necho Kernel 0 spin\n', monkeypatch)
    run = RunDir(path=tmp_path / "run")
    node, directory = run.node(HOST), run.rank(0).capture(2)
    directory.path.mkdir(parents=True)
    environment = core_files.environment(node)
    assert environment["CUDA_COREDUMP_PIPE"].replace("%p", "4711") == str(core_files.pipe(node, 4711))
    assert "skip_abort" in environment["CUDA_COREDUMP_GENERATION_FLAGS"]
    thread = driver(core_files.pipe(node, 4711), core_files.core(node, 4711), pieces=5)
    capture_rank(Target(pid=4711, directory=directory, socket=None), ("cuda_core",))
    thread.join()
    assert read_json(directory.answers)["sources"]["cuda_core"]["bytes"] == 5000
    assert directory.cuda_core.stat().st_size == 5000 and not core_files.core(node, 4711).exists()
    assert "info cuda kernels" in directory.cuda_text.read_text()
    assert "Kernel 0 spin" in directory.cuda_text.read_text()


def test_a_pipe_that_nobody_reads_is_a_gap_and_no_pipe_is_one_too(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path / "run")
    directory = run.rank(0).capture(2)
    directory.path.mkdir(parents=True)
    target = Target(pid=4711, directory=directory, socket=None)
    with pytest.raises(NotApplicable, match="--cuda-core"):
        cuda_core_capture.cuda_core_dump(target)
    core_files.environment(run.node(HOST))
    with pytest.raises(CaptureError, match="has not used its GPU"):
        cuda_core_capture.cuda_core_dump(target)
    os.mkfifo(core_files.pipe(run.node(HOST), 4711))
    with pytest.raises(CaptureError, match="nobody reads"):
        cuda_core_capture.cuda_core_dump(target)


def test_every_capture_is_in_one_of_the_two_looks_or_comes_last() -> None:
    from nsadiag.agent.captures.capturing import CAPTURES, LAST

    assert (*QUICK, *THOROUGH, *LAST) == tuple(CAPTURES)


@pytest.mark.parametrize("timespec", [(140729806877024, 6173284), (-1, 0), (5, 10**9)])
def test_memory_that_holds_no_time_limit_any_more_is_no_sleep(timespec: tuple[int, int]) -> None:
    """The thread left its call between the two reads: 140,729,806,877,024 s were a document that no reader took."""
    memory = ctypes.create_string_buffer(struct.pack("qq", *timespec))
    with pytest.raises(ValueError, match="no time limit"):
        sleeping._moment(os.getpid(), ctypes.addressof(memory))

"""What a process is doing, read from outside: real processes, each in another kind of wait."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nsadiag.agent.captures.capturing import capture_all
from nsadiag.agent.captures.target import Target
from nsadiag.analysis.facts.thread_state import syscall_of, thread_state_of
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.documents.kernel import NO_PROCESS
from nsadiag.evidence.layout import RunDir

READY = 'print("ready", flush=True)\n'
WAITS = {
    "lock": f"import threading\nlock = threading.Lock()\nlock.acquire()\n{READY}lock.acquire()",
    "join": f"import threading, time\nt = threading.Thread(target=time.sleep, args=(60,), daemon=True)\nt.start()\n{READY}t.join()",
    "queue": f"import queue\nq = queue.Queue()\n{READY}q.get()",
    "sleep": f"import time\n{READY}time.sleep(60)",
    "process": f"import subprocess\np = subprocess.Popen(['sleep', '60'])\n{READY}p.wait()",
    "socket": f"import socket\na, b = socket.socketpair()\n{READY}a.recv(1)",
    "http": (
        "import http.client, socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        f"c = http.client.HTTPConnection('127.0.0.1', s.getsockname()[1])\nc.request('GET', '/')\n{READY}c.getresponse()"
    ),
    "pipe": f"import os\nr, w = os.pipe()\n{READY}os.read(r, 1)",
    "flock": (
        "import fcntl, tempfile\nf = tempfile.NamedTemporaryFile()\ng = open(f.name)\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        f"{READY}fcntl.flock(g, fcntl.LOCK_EX)"
    ),
    "at exit": f"import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n{READY}",
}
DOING = {"join": "lock", "http": "socket", "flock": "io", "at exit": "leaving"}


@pytest.mark.parametrize("wait", WAITS)
def test_what_a_process_waits_for_is_read_from_outside(wait: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAITS[wait] + "\n")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            _until_it_waits(process.pid)
            run = RunDir(path=tmp_path / "run")
            for number in (1, 2):
                directory = run.rank(0).capture(number)
                capture_all([Target(pid=process.pid, directory=directory, socket=None)], native=number == 2)
        finally:
            process.kill()
    state = thread_state_of(load_cell(run.path).rank(0))
    assert state is not None
    assert state.doing == DOING.get(wait, wait)
    assert state.same
    assert not state.running
    if wait != "at exit":
        assert state.place is not None
        assert state.place.code == WAITS[wait].splitlines()[-1]


def _until_it_waits(pid: int) -> None:
    """Its line `ready` comes just before the call: asleep is what counts."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        pass


def test_a_nap_from_which_it_wakes_while_it_is_looked_at_is_a_nap() -> None:
    assert syscall_of(replace(NO_PROCESS, syscall="running", wchan="hrtimer_nanosleep")) == (
        "clock_nanosleep",
        0,
    )
    assert syscall_of(replace(NO_PROCESS, syscall="running", wchan="0")) is None

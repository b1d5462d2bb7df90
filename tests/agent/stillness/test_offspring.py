"""A rank that waits for a process is as quiet as the whole tree of that process: which trees go on, and which are stuck."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs
from support.processes.warm_jobs import WarmJobs

from nsadiag.agent.captures.kernel.proc import proc
from nsadiag.agent.captures.target import Target
from nsadiag.agent.stillness.activity import Activity, usage
from nsadiag.agent.stillness.external_waits import ALWAYS_S, LONG_S, PACED_S, Stack, going_on
from nsadiag.agent.stillness.offspring import Beat, Offspring, Tally
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.layout import CaptureDir
from nsadiag.evidence.stacks import process_in

MAIN = ("train", "/home/me/train.py", 9)
WAIT = ("_wait", "/usr/lib/python3.11/subprocess.py", 2011)
LOCK = ("join", "/usr/lib/python3.11/threading.py", 1100)
# How a rank waits; `tool` is its child, which has the words of TOOLS.
WAITS = {
    "for its end": "subprocess.Popen(tool).wait()",
    "in a thread": "t = threading.Thread(target=lambda: subprocess.Popen(tool).wait()); t.start(); t.join()",
    "at a pipe": "os.read(subprocess.Popen(tool, stdout=subprocess.PIPE).stdout.fileno(), 9)",
    "at a socket": "here, there = socket.socketpair(); subprocess.Popen(tool, stdin=there.fileno()); here.recv(9)",
}
PIECES = "import os, sys, time\nwhile True:\n time.sleep(0.7); os.write(file, b'.')"
TOOLS = {
    "writes in pieces": [sys.executable, "-c", "file = __import__('os').open('/dev/null', 1)\n" + PIECES],
    "a shell that sleeps": ["sh", "-c", "while true; do sleep 0.7; done"],
    "a grandchild that writes": ["sh", "-c", "(while true; do sleep 0.7; echo . > /dev/null; done) & wait"],
    "has a thread that wakes": [sys.executable, "-c", "import threading, time\ndef f():\n while True: time.sleep(0.7)\nt = threading.Thread(target=f); t.start(); t.join()"],
    "has a thread that sleeps for long": [sys.executable, "-c", "import threading, time; threading.Thread(target=time.sleep, args=(90,)).start()"],
    "polls with a limit": [sys.executable, "-c", "import select; select.select([], [], [], 40)"],
    "never wakes": ["sleep", "infinity"],
    "stuck at a pipe": [sys.executable, "-c", "import os; os.read(os.pipe()[0], 1)"],
    "stuck after three pieces": ["sh", "-c", "for i in 1 2 3; do sleep 0.3; echo . > /dev/null; done; exec sleep infinity"],
}  # fmt: skip
PACE = 0.2  # of what is waited for, in these tests
SILENCE_S = 5.0


def looked_at(pid: int, where: Path) -> KernelProcess:
    directory = CaptureDir(path=where)
    where.mkdir(parents=True)
    proc(Target(pid=pid, directory=directory, socket=None))
    found = process_in(directory)
    assert found is not None
    return found


def seen(waits: str, tool: str, tmp_path: Path) -> tuple[str | None, float, float]:
    """What is said of a rank that waits so for that, after a silence in which it was followed."""
    source = f"import os, socket, subprocess, sys, threading\ntool = {TOOLS[tool]!r}\n{WAITS[waits]}"
    frames: dict[str, tuple[Stack, list[Stack]]] = {
        "for its end": ([WAIT, MAIN], []), "in a thread": ([LOCK, MAIN], [[WAIT, MAIN]]),
        "at a pipe": ([MAIN], []), "at a socket": ([MAIN], []),
    }  # fmt: skip
    rank = subprocess.Popen([sys.executable, "-c", source], start_new_session=True)
    activity, moment_ns = Activity(), 0
    try:
        began = time.monotonic()
        while time.monotonic() < began + SILENCE_S:
            now = usage(rank.pid)
            assert now is not None
            activity.note({0: now})
            moment_ns = int(now.t_s * 1e9)
            time.sleep(0.1)
        looks = [looked_at(rank.pid, tmp_path / str(number)) for number in (1, 2)]
        # On a crowded machine a look takes longer than the pieces do.
        before, after = (dataclasses.replace(look, t_mono_ns=moment_ns) for look in looks)
        return going_on(before, after, *frames[waits], activity.offspring(0), PACE)
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize("tool", ["writes in pieces", "stuck at a pipe"])
def test_a_tool_that_writes_goes_on_however_it_is_waited_for(waits: str, tool: str, tmp_path: Path) -> None:
    said, left_s, silence_s = seen(waits, tool, tmp_path)
    if tool == "stuck at a pipe":
        assert said is None
    else:
        assert said == "waits for a process that wrote something a moment ago" and left_s > 0
        assert silence_s == (LONG_S if waits == "in a thread" else ALWAYS_S)


@pytest.mark.parametrize(
    ("tool", "silence_s"),
    [
        ("a shell that sleeps", LONG_S),
        ("a grandchild that writes", ALWAYS_S),
        ("has a thread that wakes", PACED_S),
        ("has a thread that sleeps for long", PACED_S),
        ("polls with a limit", 40.0),
        ("never wakes", None),
        ("stuck after three pieces", None),
    ],
)
def test_what_moves_without_a_trace_is_believed_for_a_while(
    tool: str, silence_s: float | None, tmp_path: Path
) -> None:
    said, _, found_s = seen("for its end", tool, tmp_path)
    assert (found_s if said else None) == silence_s


def test_a_process_may_pause_three_times_as_long_as_it_did() -> None:
    below = Offspring()
    for moment, wrote in ((0.0, 5), (1.0, 5), (10.0, 6), (20.0, 6)):
        below.note(moment, {7: Tally(state="S", wrote=wrote)})
    assert below.left_s(Beat.WROTE, [7], 20.0) == 20.0
    assert below.left_s(Beat.WROTE, [7], 41.0) == 0.0
    assert below.left_s(Beat.WROTE, [8], 20.0) == below.left_s(Beat.READ, [7], 20.0) == 0.0


def test_what_wants_a_cpu_and_what_ends_has_moved() -> None:
    for state in ("R", "Z"):
        below = Offspring()
        below.note(0.0, {7: Tally(state="S")})
        below.note(1.0, {7: Tally(state=state)})
        assert below.left_s(Beat.RAN, [7], 1.0) > 0
    below = Offspring()
    below.note(0.0, {7: Tally(state="S"), 8: Tally(state="Z")})
    below.note(1.0, {8: Tally(state="Z")})
    assert below.left_s(Beat.RAN, [7], 1.0) > 0 and below.left_s(Beat.RAN, [8], 1.0) == 0


JOB = """
import subprocess, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(6):
    dist.all_reduce(torch.ones(2))
if dist.get_rank() == 0:
    tool = {tool!r}
    print("tool ends with", subprocess.Popen([sys.executable, "-c", tool]).wait(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
WORKERS = """
import threading, time
def upload():
    for n in range(7):
        time.sleep(2.3)
        open("/dev/null", "w").write("piece")
    {then}
workers = [threading.Thread(target=upload) for _ in range(2)]
[w.start() for w in workers]
[w.join() for w in workers]
"""


@pytest.mark.parametrize("then", ["", "threading.Event().wait()"])
def test_an_uploader_with_threads_is_waited_for_and_told_once_it_is_stuck(
    warm_jobs: WarmJobs, tmp_path: Path, then: str
) -> None:
    found = warm_jobs.judged(JOB.format(tool=WORKERS.format(then=then)), tmp_path)
    if then:
        assert (found["outcome"], found["class"], found["guilty_ranks"]) == ("hung", "external_wait", [0])
    else:
        assert found["outcome"] == "healthy"


DAEMON = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
file = open({path!r}, "wb", buffering=0)
for n in range(8):
    time.sleep(2.3)
    file.write(b".")
{then}
"""
OF_A_DAEMON = """
import os, subprocess, sys, time
import torch.distributed as dist, torch
dist.init_process_group("gloo")
for step in range(6):
    dist.all_reduce(torch.ones(2))
if dist.get_rank() == 0:
    {before}
    subprocess.run([sys.executable, "-c", {daemon!r}], check=True)
    {wait}
dist.barrier()
dist.destroy_process_group()
"""
ENDS = {
    "fifo": ("os.mkfifo({path!r})", "end = os.open({path!r}, os.O_RDONLY)\n    while os.read(end, 1): pass"),
    "file": ("pass", "while not os.path.exists({path!r}) or os.path.getsize({path!r}) < 8: time.sleep(0.3)"),
}


def watched(jobs: Jobs, end: str, pieces: int, then: str) -> dict[str, Any]:
    """The verdict of `nsadiag run`, where whatever is suspected ends a job at once."""
    path = str(jobs.directory / "end")
    before, wait = (text.format(path=path) for text in ENDS[end])
    daemon = DAEMON.format(path=path, then=then).replace("range(8)", f"range({pieces})")
    script, run = jobs.directory / "train.py", jobs.directory / "run"
    script.write_text(OF_A_DAEMON.format(before=before, daemon=daemon, wait=wait))
    line = ("torchrun", "--standalone", "--nproc-per-node=2", str(script))
    jobs.run("run", "--quiet", "--patience", "1", "--out", str(run), "--", *line)
    found: dict[str, Any] = json.loads((run / "verdict.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_daemon_that_goes_on_is_one_of_the_job(jobs: Jobs, end: str) -> None:
    assert watched(jobs, end, 8, "")["outcome"] == "healthy"


@pytest.mark.parametrize("then", ["while true; do sleep 0.7; echo .; done", "echo .; exec sleep infinity"])
def test_a_daemon_at_a_pipe_is_believed_as_long_as_it_writes(tmp_path: Path, then: str) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    daemon = subprocess.Popen(["sh", "-c", f"exec > {path}; {then}"])
    source = f"import os\nend = os.open({str(path)!r}, os.O_RDONLY)\nwhile os.read(end, 9): pass"
    rank = subprocess.Popen([sys.executable, "-c", source])
    activity = Activity(lambda: [daemon.pid])
    try:
        until = time.monotonic() + SILENCE_S + 5
        while time.monotonic() < until:
            activity.sample({0: rank.pid})
            time.sleep(0.1)
        now = activity.sampled
        before, after = (
            dataclasses.replace(looked_at(rank.pid, tmp_path / str(number)), t_mono_ns=int(now * 1e9))
            for number in (1, 2)
        )
        said, _, silence_s = going_on(before, after, [MAIN], [], activity.offspring(0), PACE)
    finally:
        for process in (daemon, rank):
            process.kill()
            process.wait()
    assert (said, silence_s) == (
        ("waits for a process that wrote something a moment ago", LONG_S) if "while" in then else (None, 0.0)
    )

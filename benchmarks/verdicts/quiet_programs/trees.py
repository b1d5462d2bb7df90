"""Quiet phases in which a rank waits for processes that go on in small pieces, with pauses: children, theirs, or others'."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from job import Job, shape

PIECE = 16384
# Programs of the children; the pause between pieces is their first argument, the number of pieces the second.
UPLOADER = """
import os, sys, time
while os.read(0, 16384):
    time.sleep(float(sys.argv[1]))
"""
THREADED = """
import sys, threading, time
def upload():
    for n in range(int(sys.argv[2])):
        time.sleep(float(sys.argv[1]))
        open('/dev/null', 'w').write(str(n) * 100)
workers = [threading.Thread(target=upload) for _ in range(2)]
[w.start() for w in workers]
[w.join() for w in workers]
"""
LOOP = """
import asyncio, sys
async def main():
    for n in range(int(sys.argv[2])):
        await asyncio.sleep(float(sys.argv[1]))
        open('/dev/null', 'w').write(str(n) * 100)
asyncio.run(main())
"""
SELECTING = """
import select, sys
for n in range(int(sys.argv[2])):
    select.select([sys.stdin], [], [], float(sys.argv[1]))
    open('/dev/null', 'w').write(str(n) * 100)
"""
BACKING_OFF = """
import sys, time
spent, pause = 0, 0.5
while spent < float(sys.argv[1]) * int(sys.argv[2]):
    time.sleep(pause)
    spent, pause = spent + pause, 2 * pause
"""
ANSWERING = """
import socket, sys, time
there = socket.socket(fileno=int(sys.argv[3]))
there.recv(1)
for n in range(int(sys.argv[2])):
    time.sleep(float(sys.argv[1]))
    open('/dev/null', 'w').write(str(n) * 100)
there.sendall(b'done')
"""
DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
file = open(sys.argv[3], 'wb', buffering=0)
for n in range(int(sys.argv[2])):
    time.sleep(float(sys.argv[1]))
    file.write(b'.')
"""


def pieces(job: Job) -> tuple[float, int]:
    pause = job.draw.choice((0.7, 1.9, 2.05, 2.4, 3.0, 4.5))
    return pause, max(int(job.seconds / pause), 2)


def child(
    job: Job, program: str, *more: object, before: tuple[str, ...] = (), **options: object
) -> subprocess.Popen[bytes]:
    line = [*before, sys.executable, "-c", program, *map(str, (*pieces(job), *more))]
    return subprocess.Popen(line, **options)  # type: ignore[call-overload,no-any-return]


def feed(tool: subprocess.Popen[bytes], job: Job) -> None:
    """So many pieces that it takes the phase to get rid of them."""
    assert tool.stdin
    pause = float(tool.args[-2])  # type: ignore[index,arg-type]
    for _ in range(max(int(job.seconds / pause), 2)):
        tool.stdin.write(b"x" * PIECE)
    tool.stdin.close()
    tool.wait()


@shape()
def uploader_in_pieces(job: Job) -> None:
    if job.is_quiet_one:
        feed(child(job, UPLOADER, stdin=subprocess.PIPE, bufsize=0), job)


@shape()
def uploader_in_a_session_of_its_own(job: Job) -> None:
    if job.is_quiet_one:
        feed(child(job, UPLOADER, stdin=subprocess.PIPE, bufsize=0, start_new_session=True), job)


@shape()
def uploader_behind_a_shell(job: Job) -> None:
    if job.is_quiet_one:
        feed(
            child(
                job, UPLOADER, before=("sh", "-c", 'cat | "$@"; true', "sh"), stdin=subprocess.PIPE, bufsize=0
            ),
            job,
        )


@shape()
def shell_that_sleeps_between_steps(job: Job) -> None:
    if job.is_quiet_one:
        pause, count = pieces(job)
        subprocess.run(["sh", "-c", f"for i in $(seq {count}); do sleep {pause}; done"], check=True)


@shape()
def tool_with_threads(job: Job) -> None:
    if job.is_quiet_one:
        child(job, THREADED).wait()


@shape()
def tool_with_an_event_loop(job: Job) -> None:
    if job.is_quiet_one:
        child(job, LOOP).wait()


@shape()
def tool_that_selects(job: Job) -> None:
    if job.is_quiet_one:
        tool = child(job, SELECTING, stdin=subprocess.PIPE)
        tool.wait()


@shape()
def tool_that_backs_off(job: Job) -> None:
    if job.is_quiet_one:
        child(job, BACKING_OFF).wait()


@shape()
def tool_of_a_thread(job: Job) -> None:
    """The main thread joins one that waits for a tool."""
    if job.is_quiet_one:
        thread = threading.Thread(target=lambda: child(job, THREADED).wait())
        thread.start()
        thread.join()


@shape()
def uploader_of_a_thread(job: Job) -> None:
    if job.is_quiet_one:
        thread = threading.Thread(
            target=lambda: feed(child(job, UPLOADER, stdin=subprocess.PIPE, bufsize=0), job)
        )
        thread.start()
        thread.join()


@shape()
def answer_on_a_socket_of_a_child(job: Job) -> None:
    if job.is_quiet_one:
        here, there = socket.socketpair()
        tool = child(job, ANSWERING, there.fileno(), pass_fds=(there.fileno(),))
        there.close()
        here.sendall(b"?")
        here.recv(4)
        tool.wait()


@shape()
def fifo_of_a_daemon(job: Job) -> None:
    if job.is_quiet_one:
        path = job.scratch / f"fifo{job.rank}-{time.monotonic_ns()}"
        os.mkfifo(path)
        child(job, DAEMON, path).wait()
        with path.open("rb", buffering=0) as end:
            while end.read(1):
                pass


@shape()
def file_of_a_daemon_that_grows(job: Job) -> None:
    if not job.is_quiet_one:
        return
    path = job.scratch / f"file{job.rank}-{time.monotonic_ns()}"
    tool = child(job, DAEMON, path)
    count = int(tool.args[-2])  # type: ignore[index,arg-type]
    tool.wait()
    grown(path, count)


def grown(path: Path, count: int) -> None:
    while not path.exists() or path.stat().st_size < count:
        time.sleep(0.3)

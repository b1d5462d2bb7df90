"""What threads of another process wait for in the kernel: descriptors, ZeroMQ's connections, and memory that they share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import wait_until

from nsadiag.agent.attaching.system_calls import awaited, call_of, shared_memory, threads_of
from nsadiag.agent.captures.kernel.descriptors import descriptors

SERVER = """
import socket, sys, zmq
server = zmq.Context().socket(zmq.REP)
server.bind(f"ipc://{sys.argv[1]}/address")
print("up", flush=True)
server.recv()
input()
"""
CLIENT = """
import sys, zmq
client = zmq.Context().socket(zmq.REQ)
client.connect(f"ipc://{sys.argv[1]}/address")
client.send(b"")
print("up", flush=True)
client.recv()
"""


def started(text: str, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", text, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "up\n"
    return process


def rows_awaited(pid: int) -> list[dict[str, object]]:
    """Rows of the descriptors for which the main thread waits."""
    calls = {tid: call for tid in threads_of(pid) if (call := call_of(pid, tid))}
    fds = awaited(pid, calls).get(pid, [])
    return [row for row in descriptors(pid)["open"] if row["fd"] in fds]


def test_who_waits_in_zeromq_waits_for_the_process_at_the_other_end(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    server = started(SERVER, str(tmp_path))
    client = started(CLIENT, str(tmp_path))
    try:
        wait_until(lambda: any(row.get("peer_inode") for row in rows_awaited(client.pid)), "the client waits")
        peers = {row["peer_inode"] for row in rows_awaited(client.pid)} - {0, None}
        theirs = {row["inode"] for row in descriptors(server.pid)["open"] if row["kind"] == "unix"}
        assert peers and peers <= theirs
    finally:
        for process in (server, client):
            process.kill()
            process.wait()


def test_the_ends_of_a_unix_socket_name_each_other() -> None:
    text = "import socket; a, b = socket.socketpair(); print('up', flush=True); a.recv(1)"
    process = started(text)
    try:
        wait_until(lambda: rows_awaited(process.pid), "it waits")
        (row,) = rows_awaited(process.pid)
        ends = {r["inode"]: r["peer_inode"] for r in descriptors(process.pid)["open"] if r["kind"] == "unix"}
        assert ends[ends[row["inode"]]] == row["inode"] != row["peer_inode"]
    finally:
        process.kill()
        process.wait()


def test_processes_that_share_memory_have_it_in_common() -> None:
    text = """
import sys
from multiprocessing.shared_memory import SharedMemory
block = SharedMemory(sys.argv[1]) if sys.argv[1:] else SharedMemory(create=True, size=64)
print("up", flush=True)
print(block.name, flush=True)
input()
"""
    owner = started(text)
    assert owner.stdout
    other = started(text, owner.stdout.readline().strip())
    stranger = started("print('up', flush=True); input()")
    try:
        assert set(shared_memory(owner.pid)) & set(shared_memory(other.pid))
        assert not set(shared_memory(owner.pid)) & set(shared_memory(stranger.pid))
    finally:
        # By name it is the owner's to remove, which ends as it likes.
        for process in (other, stranger, owner):
            process.communicate("\n")
    assert not shared_memory(2**22 + os.getpid())


# As NCCL's threads do, which leave places free in what they poll.
POLLER = """
import ctypes, socket

class Polled(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]

ours, theirs = socket.socketpair()
print(ours.fileno(), flush=True)
ctypes.CDLL(None).poll((Polled * 3)(Polled(-1, 1, 0), Polled(ours.fileno(), 1, 0), Polled(-1, 1, 0)), 3, -1)
"""


def test_places_that_poll_passes_over_are_no_descriptors() -> None:
    process = subprocess.Popen([sys.executable, "-c", POLLER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        fd = int(process.stdout.readline())

        def polled() -> list[int]:
            call = call_of(process.pid, process.pid)
            return awaited(process.pid, {process.pid: call}).get(process.pid, []) if call else []

        wait_until(lambda: bool(polled()), "poll")
        assert polled() == [fd]
    finally:
        process.kill()
        process.wait()

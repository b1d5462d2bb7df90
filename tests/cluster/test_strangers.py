"""Whoever connects to node 0 without the token is dropped soon, and keeps nobody from the meeting or the side channel."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.meeting import TOKEN, hello, place, port, refusal
from support.jobs import GIVE_UP_S, wait_until

from nsadiag.cluster.join import enter
from nsadiag.errors import MachineError

NODE_0 = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
from support.cluster.meeting import hello, place
from nsadiag.cluster.join import farewell, gather
crew = gather(place(0, int(sys.argv[1])), hello(0), lambda line: print(line, flush=True))
# ru_maxrss would be that of whoever forked this process, where that is more.
peak_kib = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("met", int(peak_kib) // 1024, flush=True)
sys.stdin.read()
farewell(crew, {"message": "over"})
"""
# Opens connections, says how many, and holds those that node 0 leaves it, until its stdin ends.
FLOOD = """
import os, resource, selectors, socket, sys, threading, time
count, kind, ports = int(sys.argv[1]), sys.argv[2], [int(p) for p in sys.argv[3:]]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000),) * 2)
KINDS = {
    "silent": b"", "half a hello": b"NSADIAG1" + b"x" * 9, "http": b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", "tls": bytes.fromhex("1603010200"),
    "store": b"\\0\\xce\\xf7\\x85\\x3c" * 20, "slow": b"N", "wrong token": b"NSADIAG1" + b"x" * 52,
}
held = []
for number in range(count):
    name = [*KINDS][number % len(KINDS)] if kind == "all" else kind
    try:
        held.append((socket.create_connection(("127.0.0.1", ports[number % len(ports)]), 10), name))
        held[-1][0].sendall(KINDS[name])
    except OSError:
        pass
print(len(held), flush=True)
rest = b"SADIAG1" + b"x" * 51
def drip():
    for place in range(len(rest)):
        for sock, name in held:
            if name == "slow":
                try: sock.send(rest[place : place + 1])
                except OSError: pass
        time.sleep(0.5)
threading.Thread(target=drip, daemon=True).start()
sys.stdin.read()
"""


@contextlib.contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def hard_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("all", 10_000), ("silent", 1500), ("half a hello", 1500), ("slow", 1500), ("http", 500), ("store", 500),
        ("wrong token", 500),
    ],
)  # fmt: skip
def test_agents_meet_however_many_strangers_hold_node_0s_ports(kind: str, count: int) -> None:
    """Node 0 has 512 descriptors."""
    at = port()
    with python(NODE_0, at) as node_0:
        assert line(node_0) == f"waiting at 127.0.0.1:{at} for node 1"
        with python(FLOOD, count, kind, at, at + 1) as flood:
            held = int(line(flood))
            assert held >= min(count, hard_limit() - 100) * 0.9
            seat = enter(place(1, at), hello(1), lambda _: None)
            assert line(node_0) == "node 1 (host1) is here"
            word, peak_mib = line(node_0).split()
            assert word == "met"
            assert int(peak_mib) < 200
            # Strangers come and go; node 1 stays.
            with python(FLOOD, 1000, "all", at + 1) as more:
                line(more)
                assert seat.link.is_connected and seat.link.silent_s() < GIVE_UP_S
            assert node_0.stdin is not None
            node_0.stdin.close()
            wait_until(lambda: (seat.link.heard("bye") or {}).get("message") == "over", "the farewell")
            seat.link.close()


def test_a_node_that_is_sent_away_asks_again_until_its_wait_is_over() -> None:
    at, turned_away = port(), threading.Event()

    def send_away(listener: socket.socket) -> None:
        for number in range(4):
            connection, _ = listener.accept()
            connection.send(b"NSADIAG1" if number % 2 else b"")
            connection.close()
        listener.close()
        turned_away.set()

    threading.Thread(target=send_away, args=(socket.create_server(("127.0.0.1", at)),), daemon=True).start()
    found: list[object] = []
    node_1 = threading.Thread(
        target=lambda: found.append(enter(place(1, at), hello(1), lambda _: None)), daemon=True
    )
    node_1.start()
    assert turned_away.wait(GIVE_UP_S)
    with python(NODE_0, at) as node_0:
        assert [line(node_0).partition(" at")[0], line(node_0)] == ["waiting", "node 1 (host1) is here"]
        node_1.join(GIVE_UP_S)
        assert line(node_0).startswith("met")
    assert found
    found[0].link.close()  # type: ignore[attr-defined]


def test_who_answers_nothing_is_named_when_the_wait_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        error = refusal(
            lambda: enter(place(1, silent.getsockname()[1], wait_s=1.0), hello(1), lambda _: None)
        )
    assert isinstance(error, MachineError)
    assert "nobody answers at" in error.message and "after 1 s" in error.message
    assert time.monotonic() - started < GIVE_UP_S
    assert TOKEN not in error.message

"""The agents' meeting place: torch's TCPStore, on its own port, in its own process.

Run as `python -m nsadiag.cluster.meeting`: a request as one JSON line on stdin, answers as JSON lines on stdout. The
agent itself so needs no torch, and whatever the store's threads wait for in C++ can be ended. What lies in the store is
sealed (the store lets in anybody), a store that is full of other things is only a store in which nothing is found, and
it is closed as soon as all have met.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Protocol

from nsadiag.cluster.protocol.hello import Hello, Mismatch, hello_of, mismatch
from nsadiag.cluster.protocol.seal import MOST_SEALED, derive, seal, unseal

POLL_S = 0.1
STORE_S = 60.0  # for one question: node 0 listens before its torch is imported
GONE_S = 3.0  # agents fetch their answers before the store closes
MOST_HELLOS = 4  # by node: each agent says hello once, but strangers may, too
OPEN = "nsadiag/open"
NONCE_BYTES = 16


class Store(Protocol):
    """The methods of torch's store that are used here."""

    def set(self, key: str, value: str | bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...


class Meeting:
    """The keys of one run in a store: agents leave a hello each, and find an answer."""

    def __init__(self, store: Store, token: str) -> None:
        self._store, self._token = store, token
        # Two runs in one store, or one with another token, do not see each other.
        self._prefix = f"nsadiag/{derive(token, b'meeting').hex()[:16]}"
        # Node 0 draws it for this one meeting: what was sealed for another with the same token proves nothing here.
        self._nonce = ""

    def greet(self, hello: Hello) -> str:
        """Leaves the hello; returns where the answer will be."""
        number = self._store.add(f"{self._prefix}/hellos", 1)
        place = f"{self._prefix}/hello/{number}"
        self._store.set(place, seal(self._token, self._purpose(place), hello.document()))
        return place

    def answer(self, place: str, hello: Hello, body: dict[str, Any]) -> None:
        key = f"{place}/{hello.agent}"
        self._store.set(key, seal(self._token, self._purpose(key), body))

    def answered(self, place: str, hello: Hello) -> dict[str, Any] | None:
        key = f"{place}/{hello.agent}"
        return self._sealed(key, self._purpose(key))

    def hellos(self) -> int:
        return self._store.add(f"{self._prefix}/hellos", 0)

    def hello(self, number: int) -> tuple[str, Hello | None]:
        """The key of greeting `number` in the store, and the greeting; None if it is not there yet, or is not sealed."""
        place = f"{self._prefix}/hello/{number}"
        body = self._sealed(place, self._purpose(place))
        return place, hello_of(body) if body else None

    def is_open(self) -> bool:
        """Whether the run of our token is met here, of which node 0 leaves a sign."""
        key = f"{self._prefix}/{OPEN}"
        sign = self._sealed(key, key)
        self._nonce = str((sign or {}).get("nonce", ""))
        return sign is not None

    def open(self) -> None:
        self._store.set(OPEN, b"1")
        key = f"{self._prefix}/{OPEN}"
        self._nonce = secrets.token_hex(NONCE_BYTES)
        self._store.set(key, seal(self._token, key, {"nonce": self._nonce}))

    def is_other_run(self) -> bool:
        """Whether a run of nsadiag is met here at all."""
        return bool(self._store.check([OPEN]))

    def _purpose(self, key: str) -> str:
        return f"{key}/{self._nonce}"

    def _sealed(self, key: str, purpose: str) -> dict[str, Any] | None:
        if not self._store.check([key]):
            return None
        value = self._store.get(key)
        return unseal(self._token, purpose, value) if len(value) <= MOST_SEALED else None


def host(request: dict[str, Any]) -> None:
    """Node 0: the store, until all have met or one may not join."""
    from torch.distributed import TCPStore

    listener = socket.socket(fileno=request["listener"])
    address, port = request["address"]
    store = TCPStore(
        address, port, None, True, timedelta(seconds=STORE_S), False,
        master_listen_fd=listener.detach(), use_libuv=True,
    )  # fmt: skip
    first = hello_of(request["hello"])
    assert first is not None
    meeting = Meeting(store, request["token"])
    meeting.open()
    say({"open": True})
    met: dict[int, Hello] = {}
    heard, unread = 0, set[int]()
    while len(met) < first.nnodes - 1:
        newest = min(meeting.hellos(), MOST_HELLOS * first.nnodes)
        unread |= set(range(heard + 1, newest + 1))
        heard = max(heard, newest)
        for number in sorted(unread):
            place, hello = meeting.hello(number)
            if hello is None:
                continue
            unread.discard(number)
            wrong = mismatch(first, hello, met)
            if wrong is not None:
                meeting.answer(place, hello, {"refused": wrong.document()})
                say({"refused": wrong.document(), "host": hello.host})
                if wrong.fatal:
                    time.sleep(GONE_S)
                    return
                continue
            met[hello.node_rank] = hello
            meeting.answer(place, hello, {"door": request["door"]})
            say({"met": hello.document()})
        time.sleep(POLL_S)
    # Its agent ends this process once all have come through the door.
    threading.Event().wait()


def join(request: dict[str, Any]) -> None:
    """Every other node: says hello, and waits for the answer."""
    from torch.distributed import TCPStore

    address, port = request["address"]
    hello = hello_of(request["hello"])
    assert hello is not None
    store = TCPStore(address, port, None, False, timedelta(seconds=STORE_S), False, use_libuv=True)
    meeting = Meeting(store, request["token"])
    if not meeting.is_open():
        # Node 0 leaves the sign right after it has opened the store.
        time.sleep(1.0)
        if not meeting.is_open():
            say({"refused": _stranger(f"{address}:{port}", another=meeting.is_other_run()).document()})
            return
    place = meeting.greet(hello)
    while (answer := meeting.answered(place, hello)) is None:
        time.sleep(POLL_S)
    say(answer)


def _stranger(address: str, *, another: bool) -> Mismatch:
    return Mismatch(
        message=f"the run that is met at {address} has another run token"
        if another
        else f"whatever listens at {address} is no run of nsadiag",
        hint="give the token that node 0 was given or has printed, and a --master-port that no other run uses",
        exit_code=2,
    )


def say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _end_with_the_agent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """One request; an obstacle is an answer, too."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_agent, daemon=True).start()
    try:
        (host if request["role"] == "host" else join)(request)
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"})


if __name__ == "__main__":
    main()

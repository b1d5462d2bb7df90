"""The connection of a rank to its coordinator."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nsadiag.evidence.rehearsal import calls
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.rehearsal import touched
from nsadiag.worker.rehearsal.paths.recorder import announced

Peers = list[tuple[int, int]]  # rank and number of each call that was met
Compute = Callable[[Peers], object]


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A call that was announced, and what its future comes to hold: computed from the peers' inputs."""

    future: torch.futures.Future[Any]
    compute: Compute


class Link:
    """Announces calls, and answers them when all that belong together are there.

    One thread computes results, in the order in which the coordinator sends them: it is the same for all members of a group.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path, self.rank, self.ahead_s = path, rank, 0.0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lock, self._waiting, self._number = threading.Lock(), dict[int, _Waiting](), 0
        # Of the all_to_all that is computed, by call: elements for each member.
        self._sent: dict[tuple[int, int], list[int]] = {}
        self._pid, self._sending = os.getpid(), threading.Lock()
        self.say(do="hello", rank=rank)
        threading.Thread(target=self._read, name="nsadiag-rehearsal", daemon=True).start()

    @property
    def calls(self) -> int:
        """The number of those that were announced so far."""
        return self._number

    def say(self, **message: Any) -> None:
        """One line to the coordinator, from whatever thread; nothing of a process that the rank forked."""
        if os.getpid() == self._pid:
            with self._sending:
                self._socket.sendall((json.dumps(message) + "\n").encode())

    def call(self, compute: Compute, data: list[torch.Tensor], **about: Any) -> torch.futures.Future[Any]:
        """Announces a call; its future completes when it was met. `about` are fields of calls.Call."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = _Waiting(future=future, compute=compute)
            if data:
                self._put(calls.data_file(self.path, self.rank, number), data)
            announced(number, calls.in_short(about))
            touched.announced(number)
            self.say(do="call", number=number, ahead_s=self.ahead_s, **about)
        return future

    def data_of(self, rank: int, number: int) -> bytes:
        """The input of a peer's call, one tensor behind the other."""
        return calls.data_file(self.path, rank, number).read_bytes()

    def part_of(self, rank: int, number: int, member: int, element_size: int) -> bytes:
        """The part of a peer's all_to_all that is for a member."""
        sizes = self._sent[rank, number]
        begin = sum(sizes[:member]) * element_size
        return self.data_of(rank, number)[begin : begin + sizes[member] * element_size]

    def _put(self, file: Path, data: list[torch.Tensor]) -> None:
        with file.open("wb") as out:
            for tensor in data:
                out.write(bytes_of(tensor))

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                met = json.loads(line)
                waiting = self._waiting.pop(met["number"])
                self.ahead_s = max(self.ahead_s, met["ahead_s"])
                touched.met({int(rank): calls for rank, calls in met["known"].items()})
                self._sent = {(rank, number): sent for rank, number, sent in met["peers"]}
                try:
                    result = waiting.compute([(rank, number) for rank, number, _ in met["peers"]])
                except Exception as error:
                    pass_on(error)
                    waiting.future.set_exception(error)
                else:
                    waiting.future.set_result(result)
                self.say(do="done", number=met["number"])
        if os.getpid() == self._pid:
            # Without a coordinator no call is ever answered: the rehearsal is over, however it ended.
            os.kill(self._pid, signal.SIGKILL)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements, one behind the other."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")

"""The coordinator of a rehearsal: it answers ranks, and outlives whoever says nonsense."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs import GIVE_UP_S

from nsadiag.agent.rehearsal.coordinator import Coordinator


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    running = Coordinator(tmp_path)
    running.start()
    yield running
    running.close()


class Rank:
    """One end of a connection."""

    def __init__(self, coordinator: Coordinator, number: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(GIVE_UP_S)
        self._socket.connect(str(coordinator.path))
        self._answers = self._socket.makefile("rb")
        self.say(do="hello", rank=number)

    def say(self, **message: Any) -> None:
        self._socket.sendall((json.dumps(message) + "\n").encode())

    def call(self, number: int) -> None:
        self.say(do="call", number=number, op="barrier", group="0", members=[0, 1])

    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self._answers.readline()))

    def is_dropped(self) -> bool:
        return self._answers.read(1) == b""


def test_both_are_told_when_they_have_met(coordinator: Coordinator) -> None:
    ranks = [Rank(coordinator, number) for number in (0, 1)]
    for rank in ranks:
        rank.call(1)
    assert [rank.answer()["number"] for rank in ranks] == [1, 1]


@pytest.mark.parametrize("nonsense", [{"do": "call"}, {"do": "dance"}, {}, {"do": "hello"}])
def test_who_says_nonsense_is_dropped_and_the_others_go_on(
    coordinator: Coordinator, nonsense: dict[str, Any]
) -> None:
    stranger = Rank(coordinator, 7)
    stranger.say(**nonsense)
    assert stranger.is_dropped()
    ranks = [Rank(coordinator, number) for number in (0, 1)]
    for rank in ranks:
        rank.call(1)
    assert [rank.answer()["peers"] for rank in ranks] == [[[0, 1, []], [1, 1, []]]] * 2


def test_the_inputs_of_a_call_are_removed_when_all_have_read_them(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    inputs = tmp_path / "0-1.data"
    inputs.write_bytes(b"1234")
    ranks = [Rank(coordinator, number) for number in (0, 1)]
    for rank in ranks:
        rank.call(1)
        rank.answer() if rank is ranks[1] else None
    ranks[0].answer()
    ranks[0].say(do="done", number=1)
    ranks[0].call(2)
    ranks[1].call(2)
    assert ranks[0].answer()["number"] == 2
    assert inputs.exists()
    ranks[1].say(do="done", number=1)
    ranks[0].call(3)
    ranks[1].call(3)
    ranks[1].answer()  # of the second call
    assert ranks[0].answer()["number"] == 3
    assert not inputs.exists()


def test_ranks_that_announce_much_before_they_read_an_answer_are_heard(coordinator: Coordinator) -> None:
    calls = 20_000  # their answers are several times as long as a socket's buffer
    ranks = [Rank(coordinator, number) for number in (0, 1)]
    for rank in ranks:
        for number in range(1, calls + 1):
            rank.call(number)
    for rank in ranks:
        assert [rank.answer()["number"] for _ in range(calls)] == list(range(1, calls + 1))

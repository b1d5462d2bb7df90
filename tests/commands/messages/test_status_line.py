"""The line at the foot of a terminal that says how far a job is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsadiag.commands.messages import status_line
from nsadiag.commands.messages.status_line import Pace, StatusLine
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.ring.blackbox import BlackBox, Counter


class Screen:
    """A pseudo-terminal whose foreground is us, as far as the status line asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.writer = pty.openpty()
        os.set_blocking(self.reader, False)
        self.is_ours = True
        monkeypatch.setattr(StatusLine, "_is_ours", lambda line: self.is_ours)
        monkeypatch.setattr(status_line, "EVERY_S", 0.01)
        monkeypatch.setattr(status_line, "SETTLED_S", 0.0)
        monkeypatch.setattr(status_line, "wait_after", lambda began: 0.01)

    def read_until(self, words: str) -> str:
        """All that was printed since the last call, once `words` is among it."""
        said = ""
        while words not in said:
            select.select([self.reader], [], [], 60)
            said += os.read(self.reader, 1 << 16).decode()
        return said

    def rest(self) -> str:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.reader, 1 << 16).decode()
        return ""


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    found = Screen(monkeypatch)
    yield found
    os.close(found.writer)
    os.close(found.reader)


def test_the_status_line_makes_room_for_what_is_printed_and_is_gone_at_the_end(screen: Screen) -> None:
    line = StatusLine(screen.writer)
    with line.shown(lambda: "12 s, step 7"):
        screen.read_until("nsadiag: 12 s, step 7")
        with line.output():
            screen.rest()
            os.write(screen.writer, b"loss 0.1\n")
        assert screen.read_until("step 7").replace("\r\n", "\n").startswith("loss 0.1\n\r\x1b[K")
    assert screen.read_until("\r\x1b[K").endswith("\r\x1b[K")


@pytest.mark.parametrize("cause", ["an unfinished line of the job", "the job has the terminal"])
def test_no_status_line_is_drawn_over_a_prompt(screen: Screen, cause: str) -> None:
    line, drawn = StatusLine(screen.writer), threading.Semaphore(0)
    screen.is_ours = cause != "the job has the terminal"

    def words() -> str:
        drawn.release()
        return "12 s"

    with line.output(b"(Pdb) " if screen.is_ours else b"\n"):
        pass
    with line.shown(words):
        assert drawn.acquire(timeout=60) and drawn.acquire(timeout=60)
    assert screen.rest() == ""


def test_the_status_line_tells_steps_their_rate_and_a_silence(tmp_path: Path) -> None:
    run, now = RunDir(path=tmp_path), [100.0]
    pace = Pace(run, lambda: now[0])
    assert pace.words() == "0 s, starting"
    run.rank(0).path.mkdir(parents=True)
    recorder = BlackBox(run.rank(0).blackbox, rank=0, world_size=1)
    assert pace.words() == "0 s, 0 of 1 ranks have made a step"
    recorder.count(Counter.STEPS, 3)
    pace.words()
    now[0] += 2
    assert pace.words() == "2 s, step 3, no step for 2 s"
    now[0] += 2
    recorder.count(Counter.STEPS, 8)
    assert pace.words() == "4 s, step 8, 1.25 steps/s"
    now[0] += 30
    assert pace.words() == "34 s, step 8, no step for 30 s"


def test_the_rate_does_not_count_the_steps_that_warm_up(tmp_path: Path) -> None:
    run, now = RunDir(path=tmp_path), [100.0]
    pace = Pace(run, lambda: now[0])
    run.rank(0).path.mkdir(parents=True)
    recorder = BlackBox(run.rank(0).blackbox, rank=0, world_size=1)
    recorder.count(Counter.STEPS, 1)
    assert pace.words() == "0 s, step 1"
    now[0] += 8  # the second step compiles
    recorder.count(Counter.STEPS, 3)
    pace.words()
    now[0] += 1
    recorder.count(Counter.STEPS, 33)
    assert pace.words() == "9 s, step 33, 30 steps/s"


def test_a_notice_wraps_at_blanks_in_the_terminals_width(screen: Screen) -> None:
    fcntl.ioctl(screen.writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    path = "artifacts/20261126-213728-a_name_that_is_longer_than_the_terminal"
    lines = (
        StatusLine(screen.writer)
        .wrapped(f"nsadiag: watching; evidence goes to {path} from here on")
        .splitlines()
    )
    assert path in [line.strip() for line in lines]
    assert all(len(line) < 40 for line in lines if path not in line)

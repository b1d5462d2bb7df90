"""A job at a terminal: it may read it, Ctrl-Z stops it and fg continues it, and Ctrl-C has a verdict."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Jobs, wait_until

PATIENCE_S = 120.0
TICKS = """
import sys, time
print(sys.argv[1:], flush=True)
for n in range(10_000):
    print(f"tick {n}", flush=True)
    time.sleep(0.1)
"""
ASKS = """
name = input("your name? ")
print(f"hello {name}", flush=True)
""" + TICKS.replace("10_000", "10_000 if sys.argv[1:] else 0")


class Terminal:
    """An interactive bash on a terminal of its own, typed into as a person does."""

    def __init__(self, jobs: Jobs) -> None:
        self.shown = ""
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(jobs.directory)
            environment = {**jobs.environment(), "PS1": "ready> ", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def wait(self, pattern: str) -> str:
        """Reads until there is something that looks so, and forgets what came before its end."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            if select.select([self._file], [], [], 0.1)[0]:
                self.shown += os.read(self._file, 65536).decode(errors="replace")
        self.shown = self.shown[found.end() :]
        return found[0]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._file)
        os.waitpid(self._pid, 0)


@pytest.fixture
def terminal(jobs: Jobs) -> Iterator[Terminal]:
    (jobs.directory / "ticks.py").write_text(TICKS)
    (jobs.directory / "asks.py").write_text(ASKS)
    opened = Terminal(jobs)
    opened.wait("ready> ")
    yield opened
    opened.close()


def states(jobs: Jobs, script: str, *, of_nsadiag: bool = False) -> set[str]:
    """Of the job's processes, as /proc has them; or of the `nsadiag` that runs it."""
    pids = [
        pid for pid, line in jobs.left().items() if script in line and ("nsadiag run" in line) == of_nsadiag
    ]
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids}


def test_a_job_may_ask_the_person_at_the_terminal(jobs: Jobs, terminal: Terminal) -> None:
    terminal.type("nsadiag run --out run -- python asks.py\n")
    terminal.wait(r"your name\? ")
    terminal.type("Ada\n")
    terminal.wait("hello Ada")
    terminal.wait("Nothing to diagnose")
    terminal.wait("ready> ")
    terminal.type("echo the shell has $((40 + 2)) again\n")
    terminal.wait("has 42 again")


def test_a_job_in_the_background_that_reads_is_stopped_until_it_is_in_front(
    jobs: Jobs, terminal: Terminal
) -> None:
    terminal.type("set -b\n")  # bash says at once when a job stops
    terminal.type("nsadiag run --out run -- python asks.py &\n")
    terminal.wait(r"your name\? ")
    terminal.wait(r"Stopped[^\n]*nsadiag run")
    wait_until(lambda: states(jobs, "asks.py") == {"T"}, "the job stopped")
    terminal.type("fg\n")
    wait_until(lambda: states(jobs, "asks.py") == {"S"}, "the job continued")
    terminal.type("Ada\n")
    terminal.wait("hello Ada")
    terminal.wait("Nothing to diagnose")


@pytest.mark.parametrize("script", ["ticks.py", "asks.py more"])
def test_ctrl_z_stops_a_job_and_fg_continues_it(jobs: Jobs, terminal: Terminal, script: str) -> None:
    name = script.split(maxsplit=1)[0]
    terminal.type(f"nsadiag run --out run -- python {script}\n")
    if name == "asks.py":
        terminal.wait(r"your name\? ")
        terminal.type("Ada\n")
    terminal.wait("tick 5")
    terminal.type("\x1a")
    terminal.wait(r"Stopped[^\n]*nsadiag run")
    terminal.wait("ready> ")
    wait_until(lambda: states(jobs, name) == {"T"}, "the job stopped")
    terminal.type("fg\n")
    terminal.wait(r"tick \d+")
    terminal.type("\x03")
    # Who has the terminal is who is interrupted: nsadiag, or a job that has read from it.
    terminal.wait("KeyboardInterrupt" if name == "asks.py" else "nsadiag: stopping: one last")
    terminal.wait("ready> ")
    assert (jobs.directory / "run/verdict.json").exists()
    assert not states(jobs, name)

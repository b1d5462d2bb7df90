"""Starts the ranks of a torchrun line without torchrun, whose own import of torch takes as long as that of all ranks.

`python -m nsadiag.agent.rehearsal.ranks N PYTHON SCRIPT [ARG...]` gives N processes the environment that torchrun gives its
ranks, each with a hash salt of its own, and ends as torchrun does: when all have ended, or when one has failed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nsadiag.agent.job.entry_script import TORCHRUN_SWITCHES, TORCHRUN_WITH_VALUE, entry_script

POLL_S = 0.02
KILL_AFTER_S = 5.0
# With any other option the line is torchrun's to understand.
UNDERSTOOD = {"standalone", "nnodes", "nproc-per-node", "max-restarts", "master-addr", "master-port", "rdzv-backend",
              "rdzv-endpoint", "rdzv-id", "node-rank"}  # fmt: skip


def started_directly(command: Sequence[str]) -> list[str]:
    """The line that starts the same ranks, or the command itself where it is no plain line of torchrun's."""
    if Path(command[0]).name != "torchrun" or entry_script(command) is None:
        return list(command)
    options, rest = _options(command[1:])
    python, ranks = _interpreter(command[0]), options.get("nproc-per-node", "1")
    plain = options.keys() <= UNDERSTOOD and options.get("nnodes", "1") in ("1", "1:1")
    if python is None or not plain or not ranks.isdigit() or int(ranks) < 1:
        return list(command)
    return [sys.executable, "-m", __spec__.name if __spec__ else __name__, ranks, python, *rest]


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """torchrun's own, by name, and the script with its arguments."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("--"):
        name, equals, value = words[at].removeprefix("--").replace("_", "-").partition("=")
        at += 1
        if name in TORCHRUN_WITH_VALUE and not equals and at < len(words):
            value = words[at]
            at += 1
        found[name] = "" if name in TORCHRUN_SWITCHES else value
    return found, list(words[at:])


def _interpreter(torchrun: str) -> str | None:
    """The Python that the script `torchrun` names in its first line."""
    found = shutil.which(torchrun)
    if found is None:
        return None
    with open(found, "rb") as file:  # noqa: PTH123
        first = file.readline(4096).decode("utf-8", "replace")
    python = first.removeprefix("#!").strip()
    return python if first.startswith("#!") and os.access(python, os.X_OK) else None


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """One rank's, as torchrun makes it."""
    one_node = {
        "LOCAL_RANK": rank, "RANK": rank, "GROUP_RANK": 0, "ROLE_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
        "WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": ranks, "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
    }  # fmt: skip
    named = {"ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} | {
        name: str(value) for name, value in {**one_node, **named}.items()
    }


def run(ranks: int, command: list[str]) -> int:
    """Runs the command on all ranks; the first code of a rank that failed, else 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [subprocess.Popen(command, env=environment(rank, ranks, port)) for rank in range(ranks)]
    try:
        while True:
            codes = [process.poll() for process in started]
            if failed := next(filter(None, codes), None):
                return failed if failed > 0 else 128 - failed
            if None not in codes:
                return 0
            time.sleep(POLL_S)
    finally:
        _end(started)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + KILL_AFTER_S
    for process in started:
        process.terminate()
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.0))
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))

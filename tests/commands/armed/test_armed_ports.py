"""Armed jobs whose port is taken: by somebody who gives it up, and by another job, whose ranks one of theirs then meets."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest
from support.jobs import Jobs, wait_until
from support.processes.armed import Armed

# Of the job that has the port: quiet until it is told to go on, then steps for long enough that an alert is withdrawn.
OWNER = """
open(f"met-{what}", "w").close()
while what == "owner" and not os.path.exists("go_on"):
    time.sleep(0.2)
for _ in range(450):
    step()
    time.sleep(0.1)
"""
# The store alone is tried again: init_process_group numbers its groups, also those that failed.
RETRIES = """
import os, time
from torch.distributed import DistNetworkError, TCPStore, distributed_c10d
init, rank = distributed_c10d.init_process_group, int(os.environ["RANK"])
def init_process_group(backend):
    while True:
        try:
            store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0)
            return init(backend, store=store, rank=rank, world_size=2)
        except DistNetworkError:
            open("refused", "w").close()
            time.sleep(0.5)
import torch.distributed
torch.distributed.init_process_group = init_process_group
"""
STANDS_S = 14.0  # of a taken port: longer than the silence after which the watcher looks


@pytest.fixture
def armed(jobs: Jobs) -> Armed:
    made = Armed(jobs)
    made.arm()
    return made


def launched(armed: Armed, port: int, ranks: tuple[int, ...], what: str = "") -> subprocess.Popen[str]:
    """Ranks by a shell, which ends none of them because another one failed."""
    script = armed.directory / "job.py"
    each = [f"RANK={rank} {armed.python} {script} {what} &" for rank in ranks]
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        ["sh", "-c", "\n".join([*each, "wait"])],
        cwd=armed.directory, env=armed.environment(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def taken() -> socket.socket:
    """A port that is bound, and where nobody answers."""
    found = socket.socket()
    found.bind(("0.0.0.0", 0))
    return found


@pytest.mark.slow
def test_a_rank_that_tries_again_until_its_port_is_free_is_no_hang(armed: Armed) -> None:
    script = armed.script()
    script.write_text(RETRIES + script.read_text())
    with taken() as holder:
        job = launched(armed, holder.getsockname()[1], (0, 1))
        wait_until((armed.directory / "refused").exists, "a port refused")
        time.sleep(STANDS_S)
    _, ends = armed.finished(job)
    assert len(ends) == 2
    assert armed.notified() == []


@pytest.mark.slow
def test_who_meets_the_ranks_of_another_job_at_its_port_is_told_of_and_then_withdrawn(armed: Armed) -> None:
    """Its own rank 0 died of the port, and is named; that the other one goes on nevertheless is said once."""
    armed.script(OWNER)
    with taken() as holder:
        port = holder.getsockname()[1]
    owner = launched(armed, port, (0,), "owner")
    wait_until(lambda: answers(port), "a store at the port")
    guest = launched(armed, port, (0, 1), "guest")
    verdict = armed.told("verdict")["verdict"]
    assert (armed.directory / "met-owner").exists() and (armed.directory / "met-guest").exists()
    assert (verdict["class"], verdict["guilty_ranks"]) == ("rank_exception", [0])
    assert "EADDRINUSE" in verdict["summary"] and "swallowed" not in verdict["summary"]
    (armed.directory / "go_on").touch()
    armed.told("withdrawn")
    armed.finished(owner)
    armed.finished(guest)
    assert [message["event"] for message in armed.notified()] == ["verdict", "withdrawn"]


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True

"""`nsadiag where`, and Ctrl-C: where every rank stands, before there is any verdict."""

from __future__ import annotations

import json
import signal
from typing import Any

from support.jobs import GIVE_UP_S, Jobs, wait_until
from support.processes.forking import FORKING

from nsadiag.agent.whereabouts import Whereabouts
from nsadiag.commands.live.where import rows
from nsadiag.evidence.layout import RunDir

JOB = """
import os, threading, torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    open(os.environ["SIGNALS"], "w").write("stuck\\n")
    threading.Event().wait()
dist.barrier()  # rank 0 waits here
"""


def where(jobs: Jobs, *arguments: str) -> str:
    """What it prints."""
    started = jobs.start("where", *arguments)
    stdout, stderr = started.communicate(timeout=GIVE_UP_S)
    assert started.returncode == 0, stderr
    return stdout


def ranks(jobs: Jobs, *arguments: str) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in json.loads(where(jobs, "--json", *arguments))["ranks"]}


def test_every_ranks_line_and_call_while_the_job_runs_and_when_it_is_interrupted(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB)
    job = jobs.start("run", "--out", "run", "--stall-after", "600", "--", *FORKING, "2", "job.py")
    jobs.signals.wait()
    wait_until(lambda: ranks(jobs, "run")[0]["call"].startswith("barrier"), "rank 0 in its barrier")
    found = ranks(jobs, "run")
    assert (found[0]["place"], found[0]["call"]) == ("job.py:9 in <module>", "barrier #2")
    assert (found[1]["place"], found[1]["call"]) == ("job.py:8 in <module>", "wait")
    assert all(row["since_s"] >= 0 for row in found.values())
    # The same of their pids, and as a table.
    assert ranks(jobs, *(str(row["pid"]) for row in found.values()))[0]["call"] == "barrier #2"
    assert "barrier #2" in where(jobs, "run")

    job.send_signal(signal.SIGINT)
    _, stderr = job.communicate(timeout=GIVE_UP_S)
    table = stderr[stderr.index("where the ranks stand:") :]
    assert "job.py:9 in <module>" in table and "job.py:8 in <module>" in table
    # Too early for two looks: what was seen once is kept.
    run = RunDir(path=jobs.directory / "run")
    assert all(rank.captures()[-1].py_spy.exists() for rank in run.ranks())


def test_ranks_that_stand_alike_share_a_row_and_the_fewest_come_first() -> None:
    found = [
        Whereabouts(rank=n, pid=n, place="train.py:9 in main", call="barrier #2", since_s=2.0 + n)
        for n in range(8)
        if n != 5
    ]
    found.append(Whereabouts(rank=5, pid=5, place="train.py:7 in save"))
    found.append(Whereabouts(rank=8, pid=8, unseen="ended"))
    assert rows(found) == [
        ("5", "train.py:7 in save", "-", "-"),
        ("8", "ended", "-", "-"),
        ("0-4, 6-7", "train.py:9 in main", "barrier #2", "2.00 s to 9.00 s"),
    ]

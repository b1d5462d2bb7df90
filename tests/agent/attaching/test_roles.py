"""`nsadiag attach` of a trainer and an engine that two launchers started: who waits for whom, and in which line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until

from nsadiag.agent import processes
from nsadiag.agent.attaching.finding import family_of
from nsadiag.agent.attaching.roles import jobs_among, name_of, roles_among, roles_in, several
from nsadiag.commands.attach.roles import named
from nsadiag.errors import UsageError

ENGINE = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

resumed = threading.Event()
if sys.argv[1:]:
    # A rollout that takes its time.
    threading.Timer(float(sys.argv[1]), resumed.set).start()

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        open("asked", "w").close()
        resumed.wait()
        self.send_response(200)
        self.end_headers()

server = ThreadingHTTPServer(("", 0), Handler)
with open("port.tmp", "w") as file:
    file.write(str(server.server_address[1]))
import os
os.rename("port.tmp", "port")
server.serve_forever()
"""
TRAINER = """
import sys, urllib.request
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    urllib.request.urlopen(f"http://{sys.argv[1]}/generate", data=b"{}").read()
dist.all_reduce(torch.ones(3))
"""

# Of this machine, as others would call it: what is at 127.0.0.1 is another process on each node.
ADDRESS = next(
    (
        each.address
        for name, found in psutil.net_if_addrs().items()
        for each in found
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ),
    "127.0.0.1",
)


@pytest.fixture
def roles(jobs: Jobs) -> Iterator[tuple[int, int]]:
    """Pids of an engine that never answers, and of torchrun, one of whose ranks waits for that."""
    here = jobs.directory
    (here / "engine.py").write_text(ENGINE)
    (here / "train.py").write_text(TRAINER)
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> int:
        env = jobs.environment()
        started.append(subprocess.Popen(words, cwd=here, env=env, start_new_session=True))
        return started[-1].pid

    try:
        engine = start("python", "engine.py")
        wait_until((here / "port").exists, "the engine listens")
        address = f"{ADDRESS}:{(here / 'port').read_text()}"
        trainer = start("torchrun", "--standalone", "--nproc-per-node", "2", "train.py", address)
        wait_until((here / "asked").exists, "the engine is asked")
        yield engine, trainer
    finally:
        # torchrun starts each rank in a session of its own.
        family = processes.with_children(p for each in started if (p := processes.identify(each.pid)))
        for process in family:
            processes.send(process, signal.SIGKILL)
        for each in started:
            each.wait()


def verdict_of(jobs: Jobs, *words: str) -> dict[str, object]:
    done = jobs.start("attach", *words, "--json", "--out", "seen")
    text, _ = done.communicate(timeout=GIVE_UP_S)
    assert done.returncode == 1, text
    found: dict[str, object] = json.loads(text)["verdict"]
    return found


def test_the_engine_is_guilty_of_what_the_trainer_waits_for(jobs: Jobs, roles: tuple[int, int]) -> None:
    found = verdict_of(jobs, *map(str, roles))
    assert (found["class"], found["certainty"]) == ("local_lock_deadlock", "proven")
    assert str(found["summary"]).startswith("engine is at engine.py:13 ")
    assert "train rank 0 and train rank 1 wait for that" in str(found["summary"])
    document = json.loads((jobs.directory / "seen/roles.json").read_text())
    members = [(row["role"], row["rank"]) for row in document["processes"]]
    assert members == [("engine", None), ("train", 0), ("train", 1)]


@pytest.mark.slow
@pytest.mark.skipif(ADDRESS == "127.0.0.1", reason="the machine has no address that another node could use")
def test_roles_on_two_nodes_are_judged_as_one_job(jobs: Jobs, roles: tuple[int, int]) -> None:
    engine, trainer = roles
    line = ("attach", "--nodes", "2", "--out", "shared", "--json")
    asked = [
        jobs.start(*line, "--role", role, env={"NSADIAG_NODE": node})
        for role, node in ((f"rollouts={engine}", "b"), (f"policy={trainer}", "a"))
    ]
    answers = [each.communicate(timeout=GIVE_UP_S) for each in asked]
    verdicts = [json.loads(text)["verdict"] for text, _ in answers]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["class"] == "local_lock_deadlock", answers
    assert verdicts[0]["summary"].startswith("rollouts is at engine.py:13 ")
    assert "policy rank 0 and policy rank 1 wait for that" in verdicts[0]["summary"]
    document = json.loads((jobs.directory / "shared/roles.json").read_text())
    assert [(row["node"], row["number"]) for row in document["processes"]] == [("a", 0), ("a", 1), ("b", 2)]
    again = jobs.start(*line, "--role", f"rollouts={engine}", env={"NSADIAG_NODE": "b"})
    _, error = again.communicate(timeout=GIVE_UP_S)
    assert again.returncode == 2 and "has another verdict" in error


def test_roles_are_named_as_somebody_says(jobs: Jobs, roles: tuple[int, int]) -> None:
    found = verdict_of(jobs, "--role", f"rollouts={roles[0]}", "--role", f"policy={roles[1]}")
    assert str(found["summary"]).startswith("rollouts is at engine.py:13 ")
    assert "policy rank 0 and policy rank 1 wait for that" in str(found["summary"])


def test_ranks_of_one_launcher_are_one_role(roles: tuple[int, int]) -> None:
    engine, trainer = roles
    assert not several(roles_among([trainer], {}))
    assert several(roles_among([trainer, engine], {}))
    assert name_of(engine) == "engine"


STARTS_BOTH = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "engine.py"])
subprocess.Popen([sys.executable, "train.py"], env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
input()
"""


def test_who_starts_ranks_is_no_role_and_what_it_starts_beside_them_is_one(tmp_path: Path) -> None:
    for name, text in (("both.py", STARTS_BOTH), ("engine.py", "input()"), ("train.py", "input()")):
        (tmp_path / name).write_text(text)
    started = subprocess.Popen([sys.executable, "both.py"], cwd=tmp_path, stdin=subprocess.PIPE)
    try:
        # A child is its parent's likeness until it has become what it is to be.
        expected = {("engine", None), ("train", 0)}
        wait_until(
            lambda: {(m.role, m.rank) for m in roles_in(family_of(started.pid))} == expected, "both", 60
        )
    finally:
        for process in family_of(started.pid):
            processes.send(process, signal.SIGKILL)
        started.wait()


LISTENS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
print("up", flush=True)
input()
"""
CONNECTS = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
input()
"""


def test_jobs_that_have_nothing_to_do_with_each_other_are_told_apart(tmp_path: Path) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(text: str, place: str, *words: str) -> subprocess.Popen[str]:
        (tmp_path / place).mkdir(exist_ok=True)
        line = [sys.executable, "-c", text, *words]
        cwd = tmp_path / place
        started.append(
            subprocess.Popen(line, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    try:
        engine = start(LISTENS, "engine")
        assert engine.stdout
        trainer = start(CONNECTS, "trainer", engine.stdout.readline().strip())
        assert engine.stdout.readline() == "up\n"
        orchestrator, other = start("input()", "trainer"), start("input()", "other")
        by_pid = {each.pid: name for each, name in ((engine, "engine"), (trainer, "trainer"), (orchestrator, "files"), (other, "other"))}  # fmt: skip
        members = roles_among([], by_pid)
        jobs = [[member.role for member in job] for job in jobs_among(members)]
        assert jobs == [["engine", "trainer", "files"], ["other"]]
    finally:
        for each in started:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("word", ["engine", "=12", "engine=x", "engine="])
def test_what_names_no_role_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="names no role"):
        named([word])


def test_a_role_is_named_by_the_pid_that_belongs_to_it() -> None:
    assert named(["engine=12", "a=b=13"]) == {12: "engine", 13: "a=b"}


WRAPPER = """
python engine.py $1 &
until [ -e port ]; do sleep 0.1; done
torchrun --standalone --nproc-per-node 2 train.py 127.0.0.1:$(cat port)
code=$?
kill %1
exit $code
"""


def run_of_wrapper(jobs: Jobs, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code of `nsadiag run`, which is to lose patience soon, and the verdict."""
    for name, text in (("engine.py", ENGINE), ("train.py", TRAINER), ("both.sh", WRAPPER)):
        (jobs.directory / name).write_text(text)
    done = jobs.run("run", "--patience", "1", "--out", "run", "--json", "--", "bash", "both.sh", *words)
    return done.returncode, json.loads(done.stdout)["verdict"]


@pytest.mark.slow
def test_run_of_a_script_that_starts_both_names_the_engine(jobs: Jobs) -> None:
    code, found = run_of_wrapper(jobs)
    assert (code, found["class"]) == (1, "local_lock_deadlock")
    assert str(found["summary"]).startswith("engine is at engine.py:13 ")
    assert "train rank 0 and train rank 1 wait for that" in str(found["summary"])
    sources = [each["source"].partition("#")[0] for each in found["evidence"]]
    assert any(source.startswith("roles/") for source in sources)
    assert all((jobs.directory / "run" / source).exists() for source in sources)
    again = jobs.run("analyze", "run", "--json")
    assert json.loads(again.stdout)["verdict"]["summary"] == found["summary"]


@pytest.mark.slow
def test_ranks_that_wait_for_an_engine_at_work_are_not_suspected(jobs: Jobs) -> None:
    code, found = run_of_wrapper(jobs, "30")
    assert (code, found["outcome"]) == (0, "healthy")
    watched = json.loads((jobs.directory / "run" / "watch.json").read_text())
    assert watched["suspicions"] == []
    assert {look["judgement"] for look in watched["looks"]} <= {"busy", "asleep", "progress"}

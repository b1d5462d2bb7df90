"""Jobs of Ray's: the verdict on recordings of real ones, and what the wait-for graph makes of single facts."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.recordings.ray_promises import RayPromise, misses, ray_promises, told

from nsadiag.analysis.verdict import judge_directory

PROMISES = [promise for promise in ray_promises() if promise.archive.exists()]
JOB, SELF = "01000000", "aa" * 12
DRIVER_TASK = "f" * 40 + JOB
ACTORS = {"a": "a" * 24 + JOB, "b": "b" * 24 + JOB}
CALLER = {
    "name": "actor_method_executor",
    "filename": "/venv/site-packages/ray/_private/function_manager.py",
    "line": 740,
}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.script.stem)
def test_a_recorded_job_has_the_promised_verdict(promise: RayPromise, tmp_path: Path) -> None:
    with tarfile.open(promise.archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert misses(promise, tmp_path) == []


def test_every_script_has_a_recording() -> None:
    assert {p.script.stem for p in ray_promises()} == {p.script.stem for p in PROMISES}


class Job:
    """A job that is written by hand: the driver waits for `a`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document: dict[str, Any] = {
            "id": JOB, "processes": [], "actors": [], "tasks": [], "taken_ms": 1e6, "watched_s": 5.0,
            "nodes": [{"id": "n", "host": "node0", "resources": {"CPU": 4.0}}],
        }  # fmt: skip
        self.process(0, driver=True, worker="d")
        self.task(DRIVER_TASK, "", "DRIVER_TASK", "RUNNING", worker="")

    def process(self, number: int, *, worker: str, actor: str = "", driver: bool = False) -> None:
        self.document["processes"].append(
            {
                "number": number,
                "pid": 100 + number,
                "node": "n",
                "worker": worker,
                "actor": actor,
                "driver": driver,
            }
        )

    def actor(self, letter: str, number: int | None, state: str = "ALIVE", **more: Any) -> None:
        self.document["actors"].append({"id": ACTORS[letter], "cls": letter.upper(), "state": state, **more})
        if number is not None:
            self.process(number, worker=letter, actor=ACTORS[letter])

    def task(
        self,
        identity: str,
        name: str,
        kind: str,
        state: str,
        *,
        worker: str,
        parent: str = DRIVER_TASK,
        **more: Any,
    ) -> None:
        self.document["tasks"].append(
            {
                "id": identity,
                "name": name,
                "kind": kind,
                "state": state,
                "worker": worker,
                "parent": parent,
                "started_ms": 1e3,
                **more,
            }
        )

    def call(
        self, letter: str, method: str, state: str = "RUNNING", *, parent: str = DRIVER_TASK, number: int = 1
    ) -> str:
        """A call of that actor's method; its id."""
        identity = f"{number:016x}{ACTORS[letter]}"
        self.task(
            identity,
            f"{letter.upper()}.{method}",
            "ACTOR_TASK",
            state,
            worker=letter,
            parent=parent,
            actor=ACTORS[letter],
        )
        return identity

    def stands(
        self, number: int, function: str, *inner: tuple[str, str], awaits: tuple[str, ...] | None = None, limit_s: float | None = None,
        line: int = 10, lines: tuple[int, int] | None = None, sleeps: bool = False, cpu_s: float = 0.0, thread: str = "MainThread",
    ) -> None:  # fmt: skip
        """Two captures of its main thread."""
        pid = 100 + number
        for capture, at in zip((1, 2), lines or (line, line), strict=True):
            folder = self.path / f"ranks/{number:05d}/captures/{capture:02d}"
            folder.mkdir(parents=True)
            frames = [{"name": name, "filename": file, "line": 1} for name, file in inner]
            frames += [{"name": function, "filename": "/job/rl.py", "line": at}] if function else []
            frames.append(CALLER)
            row = {"thread_name": thread, "os_thread_id": pid, "frames": frames}
            (folder / "py_spy.json").write_text(json.dumps([row]))
            kernel = {"tid": pid, "state": "S", "cpu_s": cpu_s * capture, "wchan": "futex_wait_queue",
                      "sleeps_until_mono_ns": 9 * 10**12 if sleeps else None}  # fmt: skip
            (folder / "proc.json").write_text(
                json.dumps(
                    {
                        "t_mono_ns": capture * 10**9,
                        "pid": pid,
                        "state": "S",
                        "cpu_s": cpu_s * capture,
                        "threads": [kernel],
                    }
                )
            )
            objects = [{"thread": pid, "call": "get", "objects": [f"{each}01000000" for each in awaits], "limit_s": limit_s}] if awaits is not None else []  # fmt: skip
            (folder / "waits.json").write_text(json.dumps({"objects": objects}))

    def joined(self, first: int, second: int, *, thread: str = "gloo_tcp_loop") -> None:
        """Connects two processes as members of a torch group are; each also has that thread."""
        for number, local, peer in ((first, 4001, 4002), (second, 4002, 4001)):
            for path in self.path.glob(f"ranks/{number:05d}/captures/*/proc.json"):
                document = json.loads(path.read_text())
                row = {"fd": 9, "kind": "tcp", "state": "ESTABLISHED", "local": f"10.0.0.1:{local}", "peer": f"10.0.0.1:{peer}"}  # fmt: skip
                document["fds"] = {"open": [row]}
                document["threads"].append({"tid": 900 + number, "state": "S", "cpu_s": 0.0, "name": thread})
                path.write_text(json.dumps(document))

    def told(self) -> dict[str, Any]:
        (self.path / "ray.json").write_text(json.dumps(self.document))
        return told(self.path, judge_directory(self.path).to_json())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


GET = ("get", "/venv/site-packages/ray/_private/worker.py")
LOCK = ("Condition.wait", "/usr/lib/python3.11/threading.py")


def test_a_call_that_waits_for_a_lock_of_its_own_is_proven(job: Job) -> None:
    job.actor("a", 1)
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    job.stands(1, "score", LOCK)
    found = job.told()
    assert (found["certainty"], found["class"], found["guilty"]) == ("proven", "local_lock_deadlock", ["A"])


def test_a_call_that_computes_is_not_accused(job: Job) -> None:
    job.actor("a", 1)
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    job.stands(1, "score", cpu_s=0.9)
    assert job.told()["outcome"] == "healthy"


def test_a_call_that_sleeps_is_not_accused(job: Job) -> None:
    job.actor("a", 1)
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    job.stands(1, "score", sleeps=True)
    assert job.told()["outcome"] == "healthy"


def test_a_lock_that_nobody_waits_for_is_a_servers(job: Job) -> None:
    job.actor("a", 1)
    job.actor("b", 2)
    job.call("b", "serve", number=2)
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    job.stands(1, "score", cpu_s=0.9)
    job.stands(2, "serve", LOCK)
    assert job.told()["outcome"] == "healthy"


def test_a_wait_with_a_limit_proves_nothing(job: Job) -> None:
    job.actor("a", 1)
    job.actor("b", 2)
    first = job.call("a", "first")
    second = job.call("b", "second", parent=first, number=2)
    job.stands(0, "main", GET, awaits=(first,))
    job.stands(1, "first", GET, awaits=(second,), limit_s=5.0)
    job.stands(
        2, "second", GET, awaits=(job.call("a", "third", "SUBMITTED_TO_WORKER", parent=second, number=3),)
    )
    found = job.told()
    assert (found["outcome"], found["certainty"], found["class"]) == ("hung", "suspected", "actor_call_cycle")


def test_a_circle_in_which_one_waits_for_other_objects_each_time_is_none(job: Job) -> None:
    job.actor("a", 1)
    job.actor("b", 2)
    first = job.call("a", "first")
    second = job.call("b", "second", parent=first, number=2)
    job.stands(0, "main", GET, awaits=(first,))
    job.stands(1, "first", GET, awaits=(second,))
    job.stands(
        2, "second", GET, awaits=(job.call("a", "third", "SUBMITTED_TO_WORKER", parent=second, number=3),)
    )
    assert job.told()["certainty"] == "proven"
    earlier = job.path / "ranks/00002/captures/01/waits.json"
    earlier.write_text(earlier.read_text().replace("0000000000000003", "0000000000000009"))
    assert job.told()["outcome"] == "healthy"


def test_an_actor_that_no_machine_can_hold_is_proven(job: Job) -> None:
    job.actor("a", None, "PENDING_CREATION", needs={"GPU": 8.0})
    job.stands(0, "main", GET, awaits=(job.call("a", "fit", "PENDING_NODE_ASSIGNMENT"),))
    found = job.told()
    assert (found["certainty"], found["class"], found["guilty"]) == ("proven", "actor_unschedulable", ["A"])


def test_an_actor_that_is_being_started_is_not_accused(job: Job) -> None:
    job.actor("a", None, "PENDING_CREATION", needs={"CPU": 4.0})
    job.stands(0, "main", GET, awaits=(job.call("a", "fit", "PENDING_NODE_ASSIGNMENT"),))
    assert job.told()["outcome"] == "incomplete"


def test_an_actor_waits_for_good_for_what_another_of_its_job_holds(job: Job) -> None:
    job.actor("b", 2, node="n", needs={"CPU": 4.0})
    job.actor("a", None, "PENDING_CREATION", needs={"CPU": 4.0})
    job.stands(0, "main", GET, awaits=(job.call("a", "fit", "PENDING_NODE_ASSIGNMENT"),))
    job.stands(2, "")
    found = job.told()
    assert (found["class"], found["guilty"]) == ("actor_unschedulable", ["A"])


def test_an_actor_that_came_after_the_captures_is_never_part_of_a_proof(job: Job) -> None:
    job.actor("a", None, "ALIVE")
    job.stands(0, "main", GET, awaits=(job.call("a", "score", "SUBMITTED_TO_WORKER"),))
    assert job.told()["outcome"] == "incomplete"


def test_a_call_on_its_way_to_an_idle_actor_is_not_accused(job: Job) -> None:
    job.actor("a", 1)
    job.stands(0, "main", GET, awaits=(job.call("a", "score", "SUBMITTED_TO_WORKER"),))
    job.stands(1, "")
    assert job.told()["outcome"] == "incomplete"


def test_a_call_has_moved_only_if_it_did_after_the_captures_began() -> None:
    from nsadiag.engines.on_ray.survey import moved_between

    def task(name: str, state: str, at_ms: float) -> dict[str, Any]:
        return {
            "id": name,
            "state": state,
            "attempt": 0,
            "created_ms": 1.0,
            "started_ms": at_ms,
            "ended_ms": None,
        }

    before = {"tasks": [task("same", "RUNNING", 10.0), task("early", "SUBMITTED_TO_WORKER", 0.0)]}
    after = {
        "tasks": [
            task("same", "RUNNING", 10.0),
            task("early", "RUNNING", 50.0),
            task("late", "RUNNING", 150.0),
        ]
    }
    assert moved_between(before, after, 100.0) == ["late"]


def test_a_call_behind_several_goes_on_once_any_of_them_returns(job: Job) -> None:
    job.actor("a", 1)
    job.stands(0, "main", GET, awaits=(job.call("a", "third", "SUBMITTED_TO_WORKER", number=3),))
    job.call("a", "score")
    job.stands(1, "score", LOCK, thread="AsyncIO Thread: default")
    job.call("a", "poll", number=2)
    assert job.told()["certainty"] != "proven"


def test_what_another_job_holds_may_become_free(job: Job) -> None:
    job.document["rivals"] = [{"job": "02000000", "cls": "Trainer", "node": "n", "needs": {"CPU": 4.0}}]
    job.actor("a", None, "PENDING_CREATION", needs={"CPU": 4.0})
    job.stands(0, "main", GET, awaits=(job.call("a", "fit", "PENDING_NODE_ASSIGNMENT"),))
    found = job.told()
    assert (found["outcome"], found["certainty"], found["class"]) == (
        "hung",
        "suspected",
        "actor_unschedulable",
    )


def test_a_process_that_could_not_be_looked_at_is_never_part_of_a_proof(job: Job) -> None:
    job.actor("a", 1)
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    found = job.told()
    assert found["certainty"] != "proven"


BACKWARD = ("_engine_run_backward", "/venv/site-packages/torch/autograd/graph.py")


def in_backward(job: Job, *, thread: str = "gloo_tcp_loop", cpu_s: float = 0.0) -> dict[str, Any]:
    """Of two members of a group one is in a backward pass, and in the other no call runs."""
    job.actor("a", 1)
    job.actor("b", 2)
    job.stands(0, "main", GET, awaits=(job.call("a", "fit"),))
    job.stands(1, "fit", BACKWARD, cpu_s=cpu_s)
    job.stands(2, "")
    job.joined(1, 2, thread=thread)
    return job.told()


def test_a_backward_pass_that_computes_nothing_waits_for_the_gradients_of_an_idle_peer(job: Job) -> None:
    found = in_backward(job)
    assert (found["certainty"], found["class"], found["guilty"]) == ("proven", "missing_rank", ["B"])


def test_a_backward_pass_that_computes_is_not_accused(job: Job) -> None:
    assert in_backward(job, cpu_s=0.5)["outcome"] == "healthy"


def test_a_backward_pass_that_may_run_on_a_device_proves_nothing(job: Job) -> None:
    assert in_backward(job, thread="pt_autograd_0")["certainty"] != "proven"


def test_calls_of_actors_that_are_rays_own_are_no_progress(job: Job) -> None:
    job.actor("a", 1)
    job.actor("b", 2)
    job.document["actors"][-1]["cls"] = "_AutoscalingCoordinatorActor"
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    job.stands(1, "score", LOCK)
    job.stands(2, "tick", cpu_s=0.9)
    job.document["moved"] = [job.call("b", "request_resources", "FINISHED", number=2)]
    job.document["tasks"][-1]["name"] = "_AutoscalingCoordinatorActor.request_resources"
    found = job.told()
    assert (found["certainty"], found["guilty"]) == ("proven", ["A"])


def test_the_host_of_who_is_guilty_is_named_in_a_job_on_several(job: Job) -> None:
    job.document["nodes"].append({"id": "m", "host": "node1", "resources": {"CPU": 4.0}})
    job.actor("a", 1)
    job.document["processes"][-1]["node"] = "m"
    job.stands(0, "main", GET, awaits=(job.call("a", "score"),))
    job.stands(1, "score", LOCK)
    job.told()
    verdict = judge_directory(job.path)
    assert verdict.summary.endswith("The driver waits for that. A is on node1.")
    assert verdict.where is not None and verdict.where.host == "node1"


# Functions whose code says that it is of Ray's own file, as on the stack of a process that is in ray.get.
WAITS_FOR_MANY = """
import os, ray
ids = [os.urandom(28) for _ in range(40)]
source = "def get(object_refs, timeout):\\n    get_objects(object_refs, timeout)\\ndef get_objects(object_refs, timeout):\\n    input()\\n"
exec(compile(source, "/venv/site-packages/ray/_private/worker.py", "exec"))
print(*(each.hex() for each in ids), flush=True)
get([ray.ObjectRef(each, skip_adding_local_ref=True) for each in ids], 7.5)
"""


def test_ids_of_references_are_read_from_the_memory_of_another_process(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from nsadiag.agent.attaching.object_waits import Layout, object_waits
    from nsadiag.engines.on_ray.looker import id_offset

    script = tmp_path / "waits.py"
    script.write_text(WAITS_FOR_MANY)
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        ids = tuple(waiting.stdout.readline().split())
        (found,) = object_waits(waiting.pid, Layout(offset=id_offset())).objects
        waiting.kill()
    assert (found.call, found.objects, found.limit_s, found.unread) == ("get", ids, 7.5, 0)

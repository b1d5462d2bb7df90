"""Waits for the world outside a job: how long it is believed that they end."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.processes.looks import process
from support.recordings.golden import archive_of, unpack

from nsadiag.agent.captures.kernel.file_locks import holder
from nsadiag.agent.captures.kernel.pipes import far_end
from nsadiag.agent.stillness.external_waits import (
    ALWAYS_S,
    ANSWER_S,
    LONG_S,
    PACED_S,
    asks,
    paces,
    patience,
    polls,
    polls_children,
    serves,
    turns_of_tools,
)
from nsadiag.agent.stillness.judgement import NAP_S, judge
from nsadiag.agent.stillness.motion import Motion
from nsadiag.agent.stillness.timed_waits import naps
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge as verdict_of
from nsadiag.evidence.documents.kernel import KernelProcess

PEER = Motion(
    rank=0, seconds=2.0, cpu_share=0.003, frames_changed=False, io_bytes=1200, events=0, collectives=0,
    waits_for_peers=True, silent_s=8.0
)  # fmt: skip
IDLE = dataclasses.replace(PEER, rank=1, waits_for_peers=False)

SELECT = ("select", "/usr/lib/python3.11/selectors.py", 415)
SERVE = ("serve_forever", "/usr/lib/python3.11/socketserver.py", 233)
MAIN = ("main", "/home/u/serve.py", 40)
RECV = ("recv_into", "/usr/lib/python3.11/socket.py", 705)
ASK = ("begin", "/usr/lib/python3.11/http/client.py", 318)
RUN = [("_communicate", "/usr/lib/python3.11/subprocess.py", 2108), ("decode", "/home/u/clips.py", 12)]
LOCK = ("wait", "/usr/lib/python3.11/threading.py", 327)


def judged(silent_s: float, **changes: object) -> str:
    """The judgement on a peer that waits, and a rank with these changes, in a silence of so many seconds."""
    moved = [
        dataclasses.replace(PEER, silent_s=silent_s),
        dataclasses.replace(IDLE, silent_s=silent_s, **changes),
    ]  # type: ignore[arg-type]
    return judge(moved, nap_credit_s=NAP_S[1] - silent_s)[0]


def test_a_server_without_a_request_is_idle_for_as_long_as_it_likes() -> None:
    assert serves([SELECT, SERVE, MAIN])
    assert judged(3600.0, outside="serves", outside_s=ALWAYS_S, limit_s=0.5) == "asleep"


def test_the_world_is_not_believed_where_the_failure_is_known() -> None:
    """A trial of `shrink` would wait for it dozens of times."""
    waits = dataclasses.replace(IDLE, outside="asks", outside_s=ANSWER_S)
    assert judge([PEER, waits])[0] == "asleep"
    assert judge([PEER, waits], believes_world=False)[0] == "still"


def test_a_server_whose_handler_stands_in_the_users_code_is_no_idle_one() -> None:
    assert not serves([("do_POST", "/home/u/serve.py", 60), ("handle", "/usr/lib/python3.11/http/server.py", 436), SERVE, MAIN])  # fmt: skip
    assert not serves([SELECT, MAIN])


def test_a_loop_that_takes_one_connection_after_the_other_is_a_server(tmp_path: Path) -> None:
    file = tmp_path / "engine.py"
    file.write_text(
        "def run(s):\n    while True:\n        c, _ = s.accept()\n\ndef meet(s):\n    return s.accept()\n"
    )
    accept = ("accept", "/usr/lib/python3.11/socket.py", 294)
    assert serves([accept, ("run", str(file), 3), MAIN])
    assert not serves([accept, ("meet", str(file), 6), MAIN])  # one peer, that may never come


def test_a_servers_thread_beside_a_main_thread_that_waits_for_threads_counts_for_a_minute() -> None:
    get = ("get", "/usr/lib/python3.11/queue.py", 171)
    assert patience(process(), process(), [LOCK, get, MAIN], [[SELECT, SERVE]])[1] == PACED_S
    assert patience(process(), process(), [LOCK, get, MAIN], [[LOCK, get]]) == (None, 0.0)
    assert patience(process(), process(), [MAIN], [[SELECT, SERVE]]) == (None, 0.0)


def test_who_waits_at_a_queue_beside_a_servers_thread_may_only_be_idle(tmp_path: Path) -> None:
    run = unpack(archive_of("local_lock_deadlock_dropped_record"), tmp_path)
    before = verdict_of(load_cell(run.path))
    for rank in run.ranks():
        for capture in rank.captures():
            if not capture.py_spy.exists():
                continue
            main = next(t for t in json.loads(capture.py_spy.read_text()) if t["thread_name"] == "MainThread")
            frames = [{"name": f[0], "filename": f[1], "line": f[2]} for f in (SELECT, SERVE)]
            serves_beside = {**main, "thread_name": "api", "os_thread_id": 99, "frames": frames}
            capture.py_spy.write_text(json.dumps([main, serves_beside]))
    after = verdict_of(load_cell(run.path))
    assert before.cls == after.cls == "local_lock_deadlock"
    assert (before.confidence, after.confidence) == (0.85, 0.5)
    assert "without a request" in after.summary


def test_who_waits_at_a_queue_beside_an_event_loop_waits_for_what_its_tasks_wait_for(tmp_path: Path) -> None:
    run = unpack(archive_of("local_lock_deadlock_dropped_record"), tmp_path)
    loop = [SELECT, ("_run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1884)]
    for own, sure in (([], 0.6), ([("start", "/home/u/prefetch.py", 12)], 0.6)):
        for rank in run.ranks():
            for capture in rank.captures():
                if capture.py_spy.exists():
                    threads = json.loads(capture.py_spy.read_text())
                    main = next(t for t in threads if t["thread_name"] == "MainThread")
                    frames = [{"name": f[0], "filename": f[1], "line": f[2]} for f in (*loop, *own)]
                    fetches = {**main, "thread_name": "fetcher", "os_thread_id": 99, "frames": frames}
                    capture.py_spy.write_text(json.dumps([main, fetches]))
        found = verdict_of(load_cell(run.path))
        assert (found.cls, found.confidence) == ("local_lock_deadlock", sure)
        assert "event loop of thread fetcher" in found.summary


def test_an_answer_over_the_network_may_take_its_time_and_not_for_ever() -> None:
    assert asks(process(wchan="wait_woken"), [RECV, ASK, MAIN], [])
    assert asks(process(wchan="wait_woken"), [MAIN], [])  # a driver of a database, in C
    assert judged(8.0, outside="asks", outside_s=ANSWER_S) == "asleep"
    assert judged(ANSWER_S + 1.0, outside="asks", outside_s=ANSWER_S) == "still"


def test_a_thread_that_asks_counts_where_the_main_thread_waits_for_threads() -> None:
    assert asks(process(), [LOCK, MAIN], [[RECV, ASK, MAIN]])
    assert not asks(process(), [LOCK, MAIN], [[LOCK, MAIN]])
    assert not asks(process(), [MAIN], [[RECV, ASK, MAIN]])
    loop = ("_run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1884)
    assert asks(process(), [SELECT, loop, MAIN], [])
    assert asks(process(), [LOCK, MAIN], [[SELECT, loop]])  # the loop of a thread of its own
    assert not asks(process(), [LOCK, MAIN], [[SELECT, MAIN]])


def test_a_child_that_asks_counts_where_the_main_thread_waits_for_children() -> None:
    pool = [LOCK, ("get", "/usr/lib/python3.11/multiprocessing/pool.py", 768), MAIN]
    loader = [("poll", "/usr/lib/python3.11/multiprocessing/connection.py", 257), ("_try_get_data", "/lib/torch/utils/data/dataloader.py", 1), MAIN]  # fmt: skip
    asking, idle = (process(children=[{"pid": 7, "wchan": wchan}]) for wchan in ("wait_woken", "pipe_read"))
    assert asks(asking, pool, [])
    assert not asks(idle, pool, [])
    assert not asks(asking, [LOCK, MAIN], [])
    assert not asks(asking, loader, [])


def test_what_torch_waits_for_comes_of_a_peer() -> None:
    store = ("_env_rendezvous_handler", "/lib/torch/distributed/rendezvous.py", 258)
    assert not asks(process(wchan="wait_woken"), [store, MAIN], [])
    assert not asks(
        process(wchan="wait_woken"), [("get", "/lib/nsadiag/worker/probes/store.py", 40), MAIN], []
    )


def test_a_long_time_limit_deserves_no_less_patience_than_a_short_one() -> None:
    for limit_s in (60.0, 300.0, 600.0):
        assert judged(8.0, limit_s=limit_s) == "asleep"
    assert judged(PACED_S + 1.0, limit_s=300.0) == "still"
    assert dataclasses.replace(IDLE, limit_s=600.0).nap_s == PACED_S


def test_a_tool_that_wakes_keeps_its_own_pace_and_one_that_never_does_is_stuck() -> None:
    then = process(children=[{"pid": 7, "turns": 100}, {"pid": 8, "turns": 5}])
    now = process(children=[{"pid": 7, "turns": 108}, {"pid": 8, "turns": 5}, {"pid": 9, "turns": 3}])
    assert turns_of_tools(then, now, RUN, []) == 8
    assert turns_of_tools(then, now, [LOCK, MAIN], [RUN]) == 8
    assert turns_of_tools(then, now, [LOCK, MAIN], [[LOCK, MAIN]]) == 0
    assert turns_of_tools(now, now, RUN, []) == 0
    assert patience(then, now, RUN, []) == ("waits for a tool that woke 8 times", PACED_S)
    assert patience(now, now, RUN, []) == (None, 0.0)
    assert judged(PACED_S - 1.0, outside="waits for a tool", outside_s=PACED_S) == "asleep"
    assert judged(PACED_S + 1.0, outside="waits for a tool", outside_s=PACED_S) == "still"


def test_who_stands_at_a_pipe_waits_for_the_child_that_holds_its_other_end() -> None:
    """Whatever the user's own line is: `proc.stdout.read(4)` shows no frame of a library."""

    def at(moment_s: float, **child: object) -> KernelProcess:
        rows = [
            {"pid": 7, "cpu_s": 0.0, **child},
            {"pid": 8, "sleeps_until_mono_ns": 90 * 10**9, "turns": moment_s},
        ]
        return process(t_mono_ns=int(moment_s * 1e9), wchan="pipe_read", pipe_held_by=[7], children=rows)

    assert patience(at(10, turns=100), at(12, turns=108), [MAIN], [])[1] == PACED_S
    assert patience(at(10, turns=100), at(12, turns=100), [MAIN], []) == (None, 0.0)
    until = {"sleeps_until_mono_ns": 30 * 10**9}
    assert naps(at(10, **until), at(12, **until), [MAIN])[0] == 18.0
    assert naps(at(10), at(12), [MAIN])[0] is None  # a tracker of its own, that sleeps
    assert patience(at(10), at(12, wchan="wait_woken"), [MAIN], [])[1] == ANSWER_S
    looks = [dataclasses.replace(at(t, turns=t), pipe_held_by=()) for t in (10, 12)]
    assert patience(*looks, [MAIN], []) == (None, 0.0)


FAMILY = """
import os, subprocess, sys, time
idle = subprocess.Popen(["sleep", "60"])
forked = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
tool = subprocess.Popen(["sh", "-c", "sleep 60 | cat"], stdout=subprocess.PIPE)
heir = os.fork()
if heir == 0:
    time.sleep(60)
    os._exit(0)
print(idle.pid, forked.pid, tool.pid, heir, flush=True)
tool.stdout.read(4)
"""


def test_who_holds_the_other_end_of_a_pipe_is_found_among_the_children_and_behind_them(
    tmp_path: Path,
) -> None:
    """A shell that runs a pipeline, and what is at its beginning; no idle child, and none that inherited our own end."""
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            idle, other, shell, heir = map(int, process.stdout.readline().split())
            deadline, found = time.monotonic() + 20.0, set[int]()
            while len(found) < 3 and time.monotonic() < deadline:
                family = psutil.Process(process.pid).children(recursive=True)
                below = {child.pid: child.ppid() for child in family}
                found = set(far_end(process.pid, Path(f"/proc/{process.pid}/syscall").read_text(), below))
                time.sleep(0.05)
        finally:
            for child in family:
                child.kill()
            process.kill()
    assert shell in found and len(found) == 3, (found, below)
    assert not found & {idle, other, heir}
    assert far_end(process.pid, "running", below) == far_end(process.pid, "0 0x5 0x0", {}) == []


POLLS = """
import os, time, filelock

def waits_at_most(path, limit_s=600):
    end = time.time() + limit_s
    while not os.path.exists(path):
        if time.time() > end:
            raise TimeoutError(path)
        time.sleep(0.5)

def waits_for_ever(path):
    while True:
        if is_there(path):
            return
        time.sleep(0.5)

def is_there(path):
    return os.path.exists(path)

class SoftLock:
    def taken(self):
        return os.path.exists(self.path)

    def enter(self):
        while self.taken():
            time.sleep(0.05)

def asks_nobody(flag):
    while not flag:
        time.sleep(0.5)

def asks_itself(event, path):
    while not event.is_set() and not os.path.exists(path):
        time.sleep(0.5)
"""


def test_who_naps_between_questions_to_the_world_is_believed_for_a_while(tmp_path: Path) -> None:
    file = tmp_path / "waits.py"
    file.write_text(POLLS)
    naps = process(sleeps_until_mono_ns=1)

    def asked(function: str) -> str | None:
        lines = POLLS.splitlines()
        at = lines.index(next(line for line in lines if f"def {function}(" in line))
        line = next(n for n, text in enumerate(lines, 1) if n > at and "sleep" in text)
        return polls(naps, [(function, str(file), line), MAIN])

    assert asked("waits_at_most") == "with a limit"
    assert asked("waits_for_ever") == "indefinitely"
    assert asked("enter") == "indefinitely"
    assert asked("asks_nobody") is None
    assert asked("asks_itself") is None
    assert polls(naps, [("acquire", "/lib/site-packages/filelock/_api.py", 330), MAIN]) == "indefinitely"
    assert polls(process(), [("acquire", "/lib/site-packages/filelock/_api.py", 330), MAIN]) is None


def test_who_asks_for_a_child_time_and_again_sleeps_as_long_as_the_child(tmp_path: Path) -> None:
    file = tmp_path / "waits.py"
    file.write_text("def result(p):\n    while p.poll() is None:\n        time.sleep(2)\n")
    frames = [("result", str(file), 3), MAIN]

    def at(moment_s: float, **child: object) -> KernelProcess:
        return process(
            t_mono_ns=int(moment_s * 1e9),
            sleeps_until_mono_ns=int((moment_s + 1.5) * 1e9),
            children=[{"pid": 7, **child}],
        )

    until = {"sleeps_until_mono_ns": 126 * 10**9}
    assert polls_children(at(102.0), frames)
    assert not polls_children(dataclasses.replace(at(102.0), children=()), frames)
    assert naps(at(100.0, **until), at(102.0, **until), frames, asks_for_child=True)[0] == 24.0
    assert naps(at(100.0, **until), at(102.0, **until), frames)[0] is None
    assert turns_of_tools(at(100.0, turns=5), at(102.0, turns=9), frames, []) == 4
    assert asks(at(102.0, wchan="wait_woken"), frames, [])


def test_a_job_of_which_every_rank_is_stopped_was_suspended_and_is_not_ended_at_once() -> None:
    stopped = dataclasses.replace(IDLE, stopped=True)
    both = [dataclasses.replace(stopped, rank=0), stopped]
    assert judge(both, nap_credit_s=290.0)[0] == "asleep"
    assert judge(both, nap_credit_s=0.0)[0] == "still"
    assert judge([PEER, stopped], nap_credit_s=290.0)[0] == "still"  # one of them holds up the others


def test_a_suspended_job_is_called_that_and_not_progress(tmp_path: Path) -> None:
    run = unpack(archive_of("missing_rank_suspended"), tmp_path)
    watch = json.loads(run.watch.read_text())
    look = watch["looks"][-1]
    for motion in look["motions"]:
        motion |= {"stopped": True, "waits_for_peers": False}
    for judgement, stopped, outcome in (("asleep", "timeout", "unknown"), ("still", "hang", "hung")):
        look["judgement"], watch["stopped"] = judgement, stopped
        run.watch.write_text(json.dumps(watch))
        for rank in run.ranks():
            for capture in rank.captures():
                proc = json.loads(capture.proc.read_text())
                capture.proc.write_text(json.dumps(proc | {"state": "T"}))
        verdict = verdict_of(load_cell(run.path))
        assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == (outcome, "unknown", ())
        assert "suspended" in verdict.summary


def test_a_short_silence_of_the_world_proves_less_than_a_long_one(tmp_path: Path) -> None:
    run = unpack(archive_of("external_wait_silent_server"), tmp_path)
    watch = json.loads(run.watch.read_text())
    found = {}
    for silent_s in (9.0, 300.0):
        for motion in watch["looks"][-1]["motions"]:
            motion["silent_s"] = silent_s
        run.watch.write_text(json.dumps(watch))
        verdict = verdict_of(load_cell(run.path))
        assert verdict.cls == "external_wait"
        found[silent_s] = verdict.confidence
    assert found[9.0] == 0.75 and found[300.0] == 0.85


LOCKS = """\
1: POSIX  ADVISORY  WRITE 11 08:01:5 0 EOF
2: FLOCK  ADVISORY  WRITE 708 08:01:9 0 EOF
2: -> FLOCK  ADVISORY  WRITE 712 08:01:9 0 EOF
2: -> FLOCK  ADVISORY  WRITE 713 08:01:9 0 EOF
3: FLOCK  ADVISORY  WRITE -1 08:01:7 0 EOF
3: -> FLOCK  ADVISORY  WRITE 720 08:01:7 0 EOF
"""


def test_the_kernel_says_who_holds_the_lock_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert holder(713, "73 0x3 0x2", listed=LOCKS) == 708
    assert holder(720, "73 0x3 0x2", listed=LOCKS) is None  # in another namespace
    assert holder(713, "202 0x3 0x2", listed=LOCKS) is None  # it waits for something else


def test_a_real_wait_for_a_lock_names_its_holder(tmp_path: Path) -> None:
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); print(flush=True); fcntl.flock(f, fcntl.LOCK_EX)"
    )
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", program, file.name], stdout=subprocess.PIPE) as waits:
            assert waits.stdout
            waits.stdout.readline()
            at, deadline = Path(f"/proc/{waits.pid}"), time.monotonic() + 20.0
            while (found := holder(waits.pid, (at / "syscall").read_text())) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            waits.kill()
    if found is None and str(os.getpid()) not in Path("/proc/locks").read_text():
        pytest.skip("this kernel lists no locks")
    assert found == os.getpid()


def test_a_lock_is_waited_for_as_long_as_its_holder_works() -> None:
    def held(pid: int, cpu_s: float) -> KernelProcess:
        return process(lock_held_by={"pid": pid, "cpu_s": cpu_s, "command": "convert"})

    words, most_s = patience(held(7, 1.0), held(7, 2.5), [MAIN], [])
    assert words and "7" in words and most_s == PACED_S
    assert patience(held(7, 1.0), held(7, 1.0), [MAIN], [])[1] == ANSWER_S
    assert patience(held(7, 1.0), held(8, 1.0), [MAIN], []) == (None, 0.0)


PACED = """
def evaluates(batches):
    for batch in range(100):
        measure(batch)
        time.sleep(0.2)


def streams(batches):
    for batch in batches:
        send(batch)
        throttle()


def throttle():
    time.sleep(0.2)


def retries():
    for attempt in range(100):
        if is_there():
            break
        time.sleep(0.2)


def retries_in_each_round():
    for shard in range(100):
        while not is_there(shard):
            time.sleep(0.2)


def sleeps():
    time.sleep(0.2)
"""


def test_who_naps_in_each_round_of_a_loop_that_no_answer_ends_is_believed(tmp_path: Path) -> None:
    file = tmp_path / "paced.py"
    file.write_text(PACED)
    lines = PACED.splitlines()
    looks = [process(sleeps_until_mono_ns=seconds * 10**9) for seconds in (3, 5)]

    def stack(*calls: tuple[str, str]) -> list[tuple[str, str, int]]:
        found = []
        for function, text in calls:
            begin = next(n for n, line in enumerate(lines) if f"def {function}(" in line)
            at = next(n for n, line in enumerate(lines, 1) if n > begin + 1 and text in line)
            found.append((function, str(file), at))
        return found

    assert paces(*looks, stack(("evaluates", "sleep"))) == LONG_S
    assert paces(*looks, stack(("throttle", "sleep"), ("streams", "throttle"))) == PACED_S
    assert paces(*looks, stack(("retries", "sleep"))) == 0
    assert paces(*looks, stack(("retries_in_each_round", "sleep"))) == 0
    assert paces(*looks, stack(("sleeps", "sleep"))) == 0
    library = ("acquire", "/lib/site-packages/filelock/_api.py", 330)
    assert paces(*looks, [library, *stack(("evaluates", "sleep"))]) == 0
    assert paces(looks[0], looks[0], stack(("evaluates", "sleep"))) == 0
    assert paces(looks[0], process(), stack(("evaluates", "sleep"))) == 0


def test_a_job_is_asleep_while_one_rank_naps_between_its_batches(tmp_path: Path) -> None:
    file = tmp_path / "paced.py"
    file.write_text(PACED)
    looks = [process(sleeps_until_mono_ns=seconds * 10**9) for seconds in (3, 5)]
    reason, silence_s = patience(*looks, [("evaluates", str(file), 5)], [])
    assert judged(100.0, outside=reason, outside_s=silence_s) == "asleep"
    assert judged(LONG_S + 1, outside=reason, outside_s=silence_s) == "still"

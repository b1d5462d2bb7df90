"""Waits for the world outside a job: how long it is believed that they end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from nsadiag.agent.outside import ANSWER_S, asks, serves, turns_of_tools
from nsadiag.agent.stillness import HELPER_CREDIT_S, NAP_S, Motion, judge
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge as verdict_of
from tests.support.golden import archive_of, unpack

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
    assert judged(3600.0, serves=True, limit_s=0.5) == "asleep"


def test_a_server_whose_handler_stands_in_the_users_code_is_no_idle_one() -> None:
    assert not serves([("do_POST", "/home/u/serve.py", 60), ("handle", "/usr/lib/python3.11/http/server.py", 436), SERVE, MAIN])  # fmt: skip
    assert not serves([SELECT, MAIN])


def test_an_answer_over_the_network_may_take_its_time_and_not_for_ever() -> None:
    assert asks({"wchan": "wait_woken"}, [RECV, ASK, MAIN], [])
    assert asks({"wchan": "wait_woken"}, [MAIN], [])  # a driver of a database, in C
    assert judged(8.0, asks=True) == "asleep"
    assert judged(ANSWER_S + 1.0, asks=True) == "still"


def test_a_thread_that_asks_counts_where_the_main_thread_waits_for_threads() -> None:
    assert asks({}, [LOCK, MAIN], [[RECV, ASK, MAIN]])
    assert not asks({}, [LOCK, MAIN], [[LOCK, MAIN]])
    assert not asks({}, [MAIN], [[RECV, ASK, MAIN]])


def test_what_torch_waits_for_comes_of_a_peer() -> None:
    store = ("_env_rendezvous_handler", "/lib/torch/distributed/rendezvous.py", 258)
    assert not asks({"wchan": "wait_woken"}, [store, MAIN], [])
    assert not asks({"wchan": "wait_woken"}, [("get", "/lib/nsadiag/worker/probes/store.py", 40), MAIN], [])


def test_a_long_time_limit_deserves_no_less_patience_than_a_short_one() -> None:
    for limit_s in (60.0, 300.0, 600.0):
        assert judged(8.0, limit_s=limit_s) == "asleep"
    assert judged(HELPER_CREDIT_S + 1.0, limit_s=300.0) == "still"
    assert dataclasses.replace(IDLE, limit_s=600.0).nap_s == HELPER_CREDIT_S


def test_a_tool_that_wakes_keeps_its_own_pace_and_one_that_never_does_is_stuck() -> None:
    then = {"children": [{"pid": 7, "turns": 100}, {"pid": 8, "turns": 5}]}
    now = {"children": [{"pid": 7, "turns": 108}, {"pid": 8, "turns": 5}, {"pid": 9, "turns": 3}]}
    assert turns_of_tools(then, now, RUN, []) == 8
    assert turns_of_tools(then, now, [LOCK, MAIN], [RUN]) == 8
    assert turns_of_tools(then, now, [LOCK, MAIN], [[LOCK, MAIN]]) == 0
    assert turns_of_tools(now, now, RUN, []) == 0
    assert judged(8.0, tool_turns=8) == "asleep"
    assert judged(8.0, tool_turns=0) == "still"
    assert judged(HELPER_CREDIT_S + 1.0, tool_turns=8) == "still"  # it polls for what will not come


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

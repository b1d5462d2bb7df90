"""Exceptions that did not end their rank: noted by real probes, and judged from evidence written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs
from support.processes.ranks import Ranks

from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer, headline, memory_of, place_of
from nsadiag.evidence.documents.exceptions import Cause, Raised, TracebackFrame
from nsadiag.evidence.documents.values import value_of
from nsadiag.evidence.layout import RankDir, RunDir, read_json, read_json_lines

RANK = ("env", "RANK=0", "WORLD_SIZE=1", "python")
SWALLOWS = """
import logging, threading, traceback
import torch
from torch import nn

model = nn.Linear(4, 4)

def attempt(number):
    if number == 0:
        model(torch.zeros(2, 5))
    elif number == 1:
        {}["printed"]
    elif number == 2:
        {}["logged"]
    elif number == 3:
        {}["formatted"]
    else:
        next(iter([]))

for number in range(5):
    try:
        attempt(number)
    except StopIteration:
        print("no more", flush=True)
    except Exception as error:
        if number == 1:
            print(error, flush=True)
        elif number == 2:
            logging.getLogger("train").warning("left out")
        elif number == 3:
            traceback.format_exc()
thread = threading.Thread(target=lambda: {}["in a thread"], name="writer")
thread.start()
thread.join()
"""


def left_by(ranks: Ranks, source: str, code: int = 0) -> RankDir:
    """What a rank leaves that ends with this exit code."""
    ranks.start(source, probes="light")
    assert ranks.started[0].wait(GIVE_UP_S) == code
    return ranks.directory()


def test_what_a_handler_swallows_is_noted_with_its_line(ranks: Ranks) -> None:
    directory = left_by(ranks, SWALLOWS)
    rows = read_json_lines(directory.raised)
    noted = {(row["how"], row["during"]): row for row in rows}
    assert [row["how"] for row in rows] == ["left", "handled", "handled", "handled", "thread"]
    assert "StopIteration" not in {row["type"] for row in rows}
    assert noted["left", "forward"]["type"] == "RuntimeError"
    for by, words in (("print", "printed"), ("logging", "logged"), ("traceback", "formatted")):
        row = noted["handled", by]
        assert row["message"] == repr(words)
        assert place_of(value_of(Raised, row)).code == f'{{}}["{words}"]'  # type: ignore[union-attr]
    assert noted["thread", "writer"]["message"] == "'in a thread'"


def test_what_a_handler_says_to_a_logger_that_does_not_listen_is_noted_too(ranks: Ranks) -> None:
    source = """
import logging
import torch

log = logging.getLogger("train")
torch.nn.Linear(1, 1)(torch.zeros(1, 1))
try:
    {}["dropped"]
except KeyError:
    log.debug("step failed", exc_info=True)
log.debug("no more")
"""
    rows = read_json_lines(left_by(ranks, source).raised)
    assert [(row["how"], row["message"]) for row in rows] == [("handled", "'dropped'")]


def test_an_exception_of_the_main_thread_is_kept_before_one_of_another(ranks: Ranks) -> None:
    source = SWALLOWS + 'raise ValueError("the last")\n'
    assert read_json(left_by(ranks, source, 1).exception)["message"] == "the last"


def test_a_port_that_somebody_else_holds_is_the_ranks_own_failure() -> None:
    taken = (
        "The server socket has failed to listen on any local network address. port: 29500, name: EADDRINUSE"
    )
    assert not follows_a_peer(Cause(type="DistNetworkError", message=taken))
    assert follows_a_peer(Cause(type="DistNetworkError", message="failed to recv, got 0 bytes"))


LEAVES = """
import os, signal, sys
import torch
if HOW == "exit":
    try:
        {}["missing"]
    except KeyError:
        sys.exit(3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_being_handled_as_the_process_left_is_told(ranks: Ranks) -> None:
    leaving = read_json(left_by(ranks, LEAVES.replace("HOW", "'exit'"), 3).leaving)
    assert (leaving["call"], leaving["handling"]["message"]) == ("exit", "'missing'")


def test_a_signal_that_a_rank_sends_itself_is_told_with_its_line(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAVES.replace("HOW", "'signal'"))
    jobs.run("run", "--out", tmp_path / "out", "--", *RANK, tmp_path / "train.py")
    verdict = json.loads(RunDir(path=tmp_path / "out").verdict.read_text())
    assert verdict["class"] == "rank_killed"
    assert verdict["where"]["code"] == "os.kill(os.getpid(), signal.SIGKILL)"
    assert "itself" in verdict["summary"]


def raised(kind: str, message: str, cause: Cause | None = None, **more: Any) -> Cause:
    frame = TracebackFrame(file=f"/home/me/{kind}.py", line=7, function="f", code=kind)
    return Cause(type=kind, message=message, frames=(frame,), cause=cause, **more)


def test_of_a_chain_the_one_that_was_meant_counts() -> None:
    first = raised("KeyError", "'x'", meant=True)
    assert first_of(raised("DataError", "could not read", first)) is first
    benign = raised("KeyError", "not in the cache", meant=False)
    last = raised("ValueError", "cannot compute", benign)
    assert first_of(last) is last


def test_a_clean_up_that_found_no_peer_gives_way_to_what_it_held_back() -> None:
    first = raised("KeyError", "'x'", meant=False)
    assert first_of(raised("RuntimeError", "Connection closed by peer", first)) is first


def test_a_loaders_worker_is_read_through_the_text_it_sent() -> None:
    message = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/site-packages/torch/utils/data/fetch.py", line 52, in fetch\n'
        "    data = self.dataset[i]\n"
        '  File "/home/me/data.py", line 12, in __getitem__\n    return row["stars"]\nKeyError: \'stars\'\n'
    )
    error = raised("KeyError", message)
    assert headline(error) == "KeyError: 'stars' (in a worker of its DataLoader)"
    place = place_of(error)
    assert place is not None
    assert (place.file, place.line) == ("/home/me/data.py", 12)


@pytest.mark.parametrize(
    ("kind", "message", "memory"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...", "gpu"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate more than 1EB memory.", None),
        ("RuntimeError", "CUDA error: out of memory", "gpu"),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
            "host",
        ),
        ("MemoryError", "", "host"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", None),
    ],
)
def test_an_allocator_that_has_nothing_left_is_told_from_other_errors(
    kind: str, message: str, memory: str | None
) -> None:
    assert memory_of(raised(kind, message)) == memory


def test_a_first_line_that_says_nothing_yet_is_told_with_the_next() -> None:
    message = 'Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "w". '
    said = headline(Cause(type="RuntimeError", message=message))
    assert said == 'RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "w".'

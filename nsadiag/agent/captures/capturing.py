"""Takes captures of a job from outside, in order of cost; each is bounded in time and its failure is itself evidence."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from nsadiag.agent.captures.answers import summed_up
from nsadiag.agent.captures.counters import wait_counters
from nsadiag.agent.captures.flight_recorder import flight_recorder, flight_recorder_pickle
from nsadiag.agent.captures.gpu.cuda_core import cuda_core_dump
from nsadiag.agent.captures.gpu.gpus import gpu
from nsadiag.agent.captures.gpu.nccl_ras import ras
from nsadiag.agent.captures.kernel.proc import proc
from nsadiag.agent.captures.python.children import children, workers
from nsadiag.agent.captures.python.event_loop_tasks import tasks
from nsadiag.agent.captures.python.interpreter_lock import python
from nsadiag.agent.captures.python.missing_gradients import ungraded
from nsadiag.agent.captures.python.py_spy import native_stack, python_stack
from nsadiag.agent.captures.python.traceback import traceback
from nsadiag.agent.captures.target import NodeTarget, NotApplicable, Target
from nsadiag.agent.processes import stat_fields
from nsadiag.deadlines.calls import call
from nsadiag.evidence.layout import CaptureDir, RunDir, make_private_dir, read_json, this_node, write_json

AnyTarget = TypeVar("AnyTarget", Target, NodeTarget)
# What it returns goes into answers.json.
Capture = Callable[[Target], Mapping[str, Any] | None]
NodeCapture = Callable[[NodeTarget], Mapping[str, Any] | None]

CAPTURES: dict[str, Capture] = {
    "proc": proc,
    "py_spy": python_stack,
    "fr": flight_recorder,
    "traceback": traceback,
    "counters": wait_counters,
    "python": python,
    "workers": workers,
    "fr_pickle": flight_recorder_pickle,
    "tasks": tasks,
    "ungraded": ungraded,
    "children": children,
    "native": native_stack,
    "cuda_core": cuda_core_dump,
}
# The rest costs a second or more a rank: once is enough.
QUICK = ("proc", "py_spy", "fr", "traceback", "counters", "python", "workers")
THOROUGH = ("fr_pickle", "tasks", "ungraded", "children", "native")
# Leaves no job behind that could go on.
LAST = ("cuda_core",)
NODE_CAPTURES: dict[str, NodeCapture] = {"ras": ras, "gpu": gpu}
# For what has no limit of its own: a file of /proc waits for the lock on a process's memory, as a page fault on a dead
# file system holds it.
LIMIT_S = 60.0
LONGER_S = {"cuda_core": 120.0}


def capture_rank(target: Target, names: tuple[str, ...]) -> None:
    """Runs the named captures; what could not be had goes into gaps.json with the reason."""
    answers = _take(target, {name: CAPTURES[name] for name in names})
    with contextlib.suppress(OSError):
        path = target.directory.answers
        earlier = read_json(path, {}).get("sources", {})
        write_json(path, summed_up(target.directory, {**earlier, **answers}))


def capture_node(target: NodeTarget) -> None:
    """Takes the captures that a machine is asked for once, whatever the number of ranks on it."""
    answers = _take(target, NODE_CAPTURES)
    with contextlib.suppress(OSError):
        write_json(target.directory.answers, {"sources": answers})


def capture_all(targets: list[Target], *, native: bool, with_locals: bool = False) -> None:
    """All ranks at once: their places are to be compared, so they should be of one moment.

    `native` is the thorough look, at a job that may well be stuck; the other does not even pause it.
    """
    if not targets:
        return
    shown = [dataclasses.replace(t, may_pause=native, with_locals=with_locals) for t in targets]
    with ThreadPoolExecutor(max_workers=8) as pool:
        node = pool.submit(capture_node, _node_of(shown))
        list(pool.map(lambda target: capture_rank(target, QUICK), shown))
        node.result()
    if native:
        capture_slow(shown)


def capture_slow(targets: list[Target]) -> None:
    """Takes the captures that cost a second or more a rank, and may pause it for as long: for a job that is known to be stuck."""
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as pool:
        list(pool.map(lambda target: capture_rank(target, THOROUGH), targets))


def capture_last(targets: list[Target]) -> None:
    """Takes the captures that the rank does not survive: only for a job that will be ended right afterwards."""
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as pool:
        list(pool.map(lambda target: capture_rank(target, LAST), targets))


def _node_of(targets: list[Target]) -> NodeTarget:
    """This machine, in a directory with the number of the ranks' own captures."""
    first = targets[0].directory
    directory = RunDir.of(first).node_capture(this_node(), first.number)
    return NodeTarget(directory=directory, pids=tuple(target.pid for target in targets))


def _take(
    target: AnyTarget, captures: Mapping[str, Callable[[AnyTarget], Mapping[str, Any] | None]]
) -> dict[str, dict[str, Any]]:
    """By capture: whether it was answered, in how many ms, and if not, why not."""
    answers: dict[str, dict[str, Any]] = {}
    gaps = []
    # Where the disk is full not even a gap can be written down: the look shows nothing, and the job goes on.
    with contextlib.suppress(OSError):
        make_private_dir(target.directory.path)
    for name, capture in captures.items():
        started = time.monotonic()
        try:
            told = call(functools.partial(capture, target), LONGER_S.get(name, LIMIT_S))
        except Exception as error:
            seconds = time.monotonic() - started
            answers[name] = {"answered": False, "ms": round(seconds * 1000, 1), "why": str(error)}
            if not isinstance(error, NotApplicable):
                evidence = _how_it_stands(target)
                gaps.append(
                    {"capture": name, "gap": str(error), "seconds": round(seconds, 3), "evidence": evidence}
                )
        else:
            ms = round((time.monotonic() - started) * 1000, 1)
            answers[name] = {"answered": True, "ms": ms, **(told or {})}
    _append_gaps(target.directory, gaps)
    return answers


def _append_gaps(directory: CaptureDir, gaps: list[dict[str, Any]]) -> None:
    if gaps:
        with contextlib.suppress(OSError):
            write_json(directory.gaps, [*read_json(directory.gaps, []), *gaps])


def _how_it_stands(target: Target | NodeTarget) -> dict[str, Any]:
    """The process's state at the moment of the failure: D (in the kernel), T (stopped), or gone, explains most."""
    if isinstance(target, NodeTarget):
        return {}
    fields = stat_fields(target.pid)
    return {"state": fields[0] if fields else "gone"}

"""Waits for the world outside a job that are no hang yet: for requests of clients, for answers over a network, for tools."""

from __future__ import annotations

import itertools
import re
from typing import Any

# Loops of servers, which call the user's code once a request has come.
SERVERS = re.compile(
    r"/(socketserver|uvicorn/server|hypercorn/\w+|waitress/\w+|gunicorn/\w+|aiohttp/web|tornado/ioloop|grpc/_server)\.py$"
)
# What stands within such a loop that has no request at hand.
IDLES = re.compile(r"/(selectors|socket|ssl|threading|http/server|grpc/_common|asyncio/\w+)\.py$")
# The standard library's way to an answer over the network, and where the kernel lets a thread wait for one.
ASKS = re.compile(r"/(socket|ssl|http/client)\.py$")
FOR_AN_ANSWER = ("wait_woken", "inet_wait_for_connect", "sk_stream_wait_memory")
# The same for a tool.
RUNS = re.compile(r"/subprocess\.py$")
WAITS = re.compile(r"/(socket|ssl|http/client|subprocess|selectors|threading)\.py$")
# Where a main thread waits for another one, that may be the one who asks.
FOR_THREADS = re.compile(r"/(threading|queue|concurrent/futures/(_base|thread))\.py$")
# These wait for peers, with limits of their own.
OF_THE_JOB = re.compile(r"/(torch|nsadiag)/")
IDLE_S = 60.0  # between two looks at a server that has nothing to do: it may be so all night
ANSWER_S = 20.0  # of silence: many a service, database or model behind an interface takes as long
TURNS = 2  # of a tool between two looks
TOOL_S = 10.0  # between two looks at one that keeps its own pace


Stack = list[tuple[Any, ...]]  # (function, file, line), innermost first


def serves(frames: Stack) -> bool:
    """Whether the main thread is in a server's loop without a request: peers rightly wait for what will come of one.

    `frames`: its stack, where it stood in both looks.
    """
    files = _files(frames)
    loop = next((n for n, file in enumerate(files) if SERVERS.search(file)), None)
    return loop is not None and all(IDLES.search(file) for file in files[:loop])


def asks(proc: dict[str, Any], frames: Stack, others: list[Stack]) -> bool:
    """Whether the main thread waits, itself or by another thread, for whoever is at the other end of a network.

    `others`: the stacks of those at the second look.
    """
    files = _files(frames)
    if files and FOR_THREADS.search(files[0]):
        return any(_within(ASKS, _files(each)) for each in others)
    in_kernel = proc.get("wchan") in FOR_AN_ANSWER and bool(files) and not OF_THE_JOB.search(files[0])
    return _within(ASKS, files) or in_kernel


def turns_of_tools(before: dict[str, Any], after: dict[str, Any], frames: Stack, others: list[Stack]) -> int:
    """How often children woke, between two looks, of a main thread that waits for a tool, itself or by another thread.

    What waits for good never wakes; what keeps a pace of its own does, and uses next to no CPU.
    """
    files = _files(frames)
    if not files:
        return 0
    beside = others if FOR_THREADS.search(files[0]) else []
    if not any(_within(RUNS, each) for each in (files, *map(_files, beside))):
        return 0
    then, now = (
        {child["pid"]: child.get("turns") for child in p.get("children", [])} for p in (before, after)
    )
    return sum(turns - (then.get(pid) or turns) for pid, turns in now.items() if turns)


def _files(frames: Stack) -> list[str]:
    return [str(frame[1]) for frame in frames]


def _within(library: re.Pattern[str], files: list[str]) -> bool:
    """Whether a thread waits in it for the user's sake. Peers and its own workers torch asks itself, with limits."""
    inner = list(itertools.takewhile(WAITS.search, files))
    caller = next(iter(files[len(inner) :]), "")
    return any(map(library.search, inner)) and bool(caller) and not OF_THE_JOB.search(caller)

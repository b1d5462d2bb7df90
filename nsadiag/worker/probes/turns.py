"""The probe `paths`: the turns of a rank's user code, from Python 3.12 on."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from nsadiag.worker import session
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.probes.collectives import collectives
from nsadiag.worker.probes.collectives.call_details import CREATIONS
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.recorder import Recorder

OLDEST = (3, 12)
# Whoever enters these is not asked about, and nobody meets there.
NO_CALLS = frozenset({"init_process_group", "destroy_process_group", "shrink_group", "wait_tensor"})
BATCH = "batch_isend_irecv"
TRANSFERS = {"send": "send", "isend": "send", "recv": "recv", "irecv": "recv"}
# What each rank gives to, and takes from, an exchange of parts may differ by right.
OF_PARTS = ("all_to_all", "reduce_scatter", "all_gather", "gather", "scatter")

MOST_TEXTS = 4096
_members: dict[str, str] = {}  # by group
_texts: dict[
    tuple[str, str, str], str
] = {}  # by operation, group and detail: a loop makes the same calls again


class _Recording:
    recorder: Any = None


@contextlib.contextmanager
def paths() -> Iterator[None]:
    """Turns of the user's code, beside the calls of its groups."""
    session.on_opened.append(_start)
    collectives.on_begun.append(_call)
    rank = session.current()
    if rank is not None:
        _start(rank)
    try:
        yield
    finally:
        collectives.on_begun.remove(_call)
        session.on_opened.remove(_start)
        _end()


def _start(rank: Recorder) -> None:
    if _Recording.recorder is not None or threading.current_thread() is not threading.main_thread():
        return
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        rank.gap(f"its path is not recorded: the probe `paths` needs Python 3.12, and this is {version}")
        return
    from nsadiag.worker.turns.recorder import TurnRecorder

    try:
        _Recording.recorder = TurnRecorder(rank)
        _Recording.recorder.begin()
    except Exception as error:
        pass_on(error)
        rank.gap(f"its path is not recorded: {error}")
        _end()
        return
    atexit.register(_end)
    os.register_at_fork(after_in_child=_end)


def _end() -> None:
    recorder, _Recording.recorder = _Recording.recorder, None
    if recorder is not None:
        recorder.end()


@harmless
def _call(op: str, group: str, number: int, detail: str, given: Any) -> None:
    recorder = _Recording.recorder
    if recorder is None or op in NO_CALLS:
        return
    if group not in _members:
        _members[group] = _members_of(given)
    members = _members[group]
    if op != BATCH:
        text = _texts.get((op, group, detail))
        if text is None:
            text = _text(op, group, members, detail)
            if len(_texts) < MOST_TEXTS:
                _texts[op, group, detail] = text
        recorder.call(text, number)
        return
    for each in detail.split("; "):
        recorder.call(_text("send" if each.startswith("to=") else "recv", group, members, each), number)


def _members_of(group: Any) -> str:
    if isinstance(group, tuple):
        group = group[0].get_group(group[1])
    elif collectives.DeviceMesh and isinstance(group, collectives.DeviceMesh):
        group = group.get_group()
    elif isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)
    elif isinstance(group, list):
        return ",".join(map(str, sorted(group)))
    return ",".join(map(str, dist.get_process_group_ranks(group)))


def _text(op: str, group: str, members: str, detail: str) -> str:
    """The call, as a rehearsal would have it: operation, group, members, root and peer, and whatever else has to be the same."""
    words = dict(word.split("=", 1) for word in detail.split() if "=" in word)
    peer = words.get("to", words.get("from", ""))
    rest = f",{words.get('root', '')},{peer},{words.get('tag', '')}"
    sizes = "" if op.startswith(OF_PARTS) else " ".join(word for word in detail.split() if "=" not in word)
    if op in CREATIONS:
        sizes = detail
    return "\t".join((TRANSFERS.get(op, op), group, members, rest, sizes))

"""The objects that a process of Ray's waits for, by the arguments of ray.get and ray.wait on its stacks.

A reference shows up there by its address; its id lies behind that in memory, at an offset that a process of the same Ray
has measured on a reference of its own. Standard library only, besides the stacks.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nsadiag.agent.attaching.joining import init_arguments
from nsadiag.agent.captures.python.py_spy import stacks_with_values
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.processes import identify
from nsadiag.evidence.documents.actors import ActorWaits, Joining, ObjectWait
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.user_code import is_user

WORKER = "ray/_private/worker.py"
REFERENCE = re.compile(r"ObjectRef(?:\(\w+\))? at 0x([0-9a-f]+)")
ID_BYTES = 28
MOST_READ = 4096


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Offset of the id in a reference of that Ray; negative where it could not be measured."""

    offset: int = -1


def object_waits(pid: int, layout: Layout) -> ActorWaits:
    """The waits of the process; a gap where its stacks could not be had with their values."""
    gaps: list[str] = []
    try:
        threads = stacks_with_values(pid)
    except (CaptureError, ValueError) as error:
        return ActorWaits(gaps=(f"process {pid}: {error}",))
    found = tuple(wait for thread in threads if (wait := _wait(thread, pid, layout, gaps)))
    return ActorWaits(
        objects=found, joining=_joining(pid, threads), lines=lines_of(threads), gaps=tuple(sorted(set(gaps)))
    )


def _wait(thread: PythonThread, pid: int, layout: Layout, gaps: list[str]) -> ObjectWait | None:
    """The outermost call of ray.get or ray.wait in which the thread stands: the user's own."""
    frames = [f for f in thread.frames if f.filename.endswith(WORKER) and f.name in ("get", "wait")]
    frame = frames[-1] if frames else None
    if frame is None:
        return None
    values = {local.name: local.repr or "" for local in frame.locals or ()}
    inner = {
        local.name: local.repr or ""
        for f in thread.frames
        if f.filename.endswith(WORKER) and f.name.endswith("get_objects")
        for local in f.locals or ()
    }
    text = inner.get("object_refs") or values.get("object_refs") or values.get("ray_waitables") or ""
    addresses = [int(found, 16) for found in REFERENCE.findall(text)]
    ids = _ids(pid, addresses[:MOST_READ], layout, gaps)
    least = values.get("num_returns", "")
    return ObjectWait(
        thread=thread.os_thread_id or 0,
        call=frame.name,
        objects=tuple(ids),
        least=int(least) if frame.name == "wait" and least.isdigit() else None,
        limit_s=_seconds(inner.get("timeout") or values.get("timeout")),
        unread=text.count(" at 0x") - len(ids),
    )


def _ids(pid: int, addresses: Iterable[int], layout: Layout, gaps: list[str]) -> list[str]:
    if layout.offset < 0:
        gaps.append("the ids of references could not be read: this Ray keeps them elsewhere")
        return []
    found = []
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError as error:
        gaps.append(f"the memory of process {pid} may not be read: {error.strerror}")
        return []
    try:
        for address in addresses:
            raw = os.pread(memory, ID_BYTES, address + layout.offset)
            if len(raw) == ID_BYTES and any(raw):
                found.append(raw.hex())
    except OSError as error:
        gaps.append(f"the memory of process {pid} may not be read: {error.strerror}")
    finally:
        os.close(memory)
    return found


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def _joining(pid: int, threads: Iterable[PythonThread]) -> Joining | None:
    if not any(f.name == "init_process_group" for thread in threads for f in thread.frames):
        return None
    process = identify(pid)
    told = init_arguments(process) if process else None
    return Joining(rank=told.rank, world_size=told.world_size, at=told.meeting) if told else None


def lines_of(threads: Iterable[PythonThread]) -> dict[str, str]:
    """The user's lines on the stacks, as they are in the files of this machine now."""
    frames: list[StackFrame] = [f for thread in threads for f in thread.frames if is_user(f.filename)]
    found = {}
    for frame in frames:
        text = linecache.getline(frame.filename, frame.line).strip()
        if text:
            found[f"{frame.filename}:{frame.line}"] = mask_text(text)[:200]
    return found

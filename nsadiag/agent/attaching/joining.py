"""Processes that stand in init_process_group, and what they have told it: which rank, of how many, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.agent.captures.python.py_spy import nonblocking_stacks
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.processes import Process
from nsadiag.evidence.documents.actors import Joining
from nsadiag.evidence.documents.python_stacks import StackFrame, Threads
from nsadiag.evidence.secrets.masking import mask_text

# torch's functions that are given a rank, innermost first, each with where its arguments say that ranks meet.
STORE, GROUP = "_create_c10d_store", "init_process_group"
# Where a function of the user's own creates a group beside the default one; torch's own ways of that have other frames.
HELPER, SUBGROUPS = "_new_process_group_helper", ("new_group", "_new_group_with_tag", "split_group", GROUP)
TORCH = "torch/distributed/"


@dataclass(frozen=True, kw_only=True)
class InitArguments:
    """Rank, world size and address of a call; `at` is host:port, or as it was given."""

    rank: int
    world_size: int
    at: str

    @property
    def meeting(self) -> str:
        return f"world_size={self.world_size} at={mask_text(self.at)}"


def init_arguments(process: Process) -> InitArguments | None:
    """The arguments of init_process_group, of a process that is blocked in it and says which rank it is."""
    try:
        threads = nonblocking_stacks(process.pid, with_locals=True)
    except (CaptureError, ValueError):
        return None
    frames = [f for thread in threads for f in thread.frames if TORCH in f.filename]
    return _told(frames) if any(f.name == GROUP for f in frames) else None


def joining_of(threads: Threads) -> Joining | None:
    """The group that a thread is about to create, also by a function of the user's own around torch's rendezvous."""
    frames = [f for thread in threads for f in thread.frames if TORCH in f.filename]
    told = _told(frames)
    by_user = told is None
    told = told or _of_helper(frames)
    if told is None:
        return None
    return Joining(rank=told.rank, world_size=told.world_size, at=mask_text(told.at), by_user=by_user)


def _of_helper(frames: list[StackFrame]) -> InitArguments | None:
    """The arguments by which a group of the user's own is created; its name stands for the place where members meet."""
    if any(f.name in SUBGROUPS for f in frames):
        return None
    frame = next((f for f in frames if f.name == HELPER), None)
    known = {local.name: str(local.repr).strip("\"'") for local in frame.locals or ()} if frame else {}
    rank, size, name = known.get("group_rank", ""), known.get("group_size", ""), known.get("group_name", "")
    return (
        InitArguments(rank=int(rank), world_size=int(size), at=name)
        if rank.isdigit() and size.isdigit() and name
        else None
    )


def _told(frames: list[StackFrame]) -> InitArguments | None:
    return next((told for f in frames if f.name in (STORE, GROUP) and (told := _arguments(f))), None)


def _arguments(frame: StackFrame) -> InitArguments | None:
    known = {local.name: str(local.repr).strip("\"'") for local in frame.locals or ()}
    rank, size = known.get("rank", ""), known.get("world_size", "")
    if not (rank.isdigit() and size.isdigit()):
        return None
    where = f"{known.get('hostname')}:{known.get('port')}" if frame.name == STORE else known["init_method"]
    # Ranks of one group may stand in different functions, which spell the same address in two ways.
    return InitArguments(rank=int(rank), world_size=int(size), at=where.removeprefix("tcp://").rstrip("/"))

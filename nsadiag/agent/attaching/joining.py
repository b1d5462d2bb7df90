"""Processes that stand in init_process_group, and what they have told it: which rank, of how many, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.agent.captures.python.py_spy import nonblocking_stacks
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.processes import Process
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.secrets.masking import mask_text

# torch's functions that are given a rank, innermost first, each with where its arguments say that ranks meet.
STORE, GROUP = "_create_c10d_store", "init_process_group"
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
    if not any(f.name == GROUP for f in frames):
        return None
    for frame in frames:
        if frame.name in (STORE, GROUP):
            told = _arguments(frame)
            if told:
                return told
    return None


def _arguments(frame: StackFrame) -> InitArguments | None:
    known = {local.name: str(local.repr).strip("\"'") for local in frame.locals or ()}
    rank, size = known.get("rank", ""), known.get("world_size", "")
    if not (rank.isdigit() and size.isdigit()):
        return None
    where = f"{known.get('hostname')}:{known.get('port')}" if frame.name == STORE else known["init_method"]
    # Ranks of one group may stand in different functions, which spell the same address in two ways.
    return InitArguments(rank=int(rank), world_size=int(size), at=where.removeprefix("tcp://").rstrip("/"))

"""The framework's functions in which ranks diverge, where their user lines are the same: `evaluate` beside `training_step`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.records import Evidence, Finding
from nsadiag.evidence.user_code import is_library, is_user, package_of

Frames = Sequence[StackFrame]


def shown(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding, with the place in the framework at which a guilty and a blocked rank diverge."""
    if cause.outcome != "hung":
        return cause
    guilty, blocked = _seen(cell, cause.guilty_ranks), _seen(cell, cause.blocked_ranks)
    where = _divergence(guilty, blocked) if guilty and blocked else None
    return dataclasses.replace(cause, evidence=(*cause.evidence, where)) if where else cause


def _seen(cell: CellEvidence, ranks: tuple[int, ...]) -> tuple[RankEvidence, Frames] | None:
    """The first of them whose stack is known."""
    for rank in cell.ranks:
        frames = _frames(rank) if rank.rank in ranks else []
        if frames:
            return rank, frames
    return None


def _frames(rank: RankEvidence) -> Frames:
    shown = [c for c in rank.captures if c.stacks]
    return shown[-1].main_frames[::-1] if shown else ()


def _divergence(guilty: tuple[RankEvidence, Frames], blocked: tuple[RankEvidence, Frames]) -> Evidence | None:
    (rank, here), (peer, there) = guilty, blocked
    if _users(here) != _users(there):
        return None
    at = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if _key(a) != _key(b)), None)
    if at is None or not is_library(here[at].filename):
        return None
    # Where one function has gone to two lines, what each of them called says more.
    same = (here[at].filename, here[at].name) == (there[at].filename, there[at].name)
    outer = here[at] if same else here[at - 1] if at else None
    sides = [frames[at + 1] if same and at + 1 < len(frames) else frames[at] for frames in (here, there)]
    within = f"{outer.name} of " if outer else ""
    claim = (
        f"rank {rank.rank} and rank {peer.rank} diverge in {within}{package_of(here[at].filename)}:"
        f" rank {rank.rank} is in {_short(sides[0])}, rank {peer.rank} in {_short(sides[1])}"
    )
    return Evidence(claim=claim, source=f"{[c for c in rank.captures if c.stacks][-1].source}/py_spy.json")


def _users(frames: Frames) -> list[tuple[str, int]]:
    return [(f.filename, f.line) for f in frames if is_user(f.filename)]


def _key(frame: StackFrame) -> tuple[str, str, int]:
    return frame.filename, frame.name, frame.line


def _short(frame: StackFrame) -> str:
    return f"{frame.name} ({Path(frame.filename).name}:{frame.line})"

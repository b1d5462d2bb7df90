"""Frames of libraries: where ranks diverge in a framework below one line of the user's, and where a stack has no line of the user's at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.records import Evidence, Finding, Place, Where
from nsadiag.evidence.user_code import is_library, is_user, package_of

Frames = Sequence[StackFrame]


def with_divergence(cell: CellEvidence, cause: Finding) -> Finding:
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


Frame = tuple[str, int, str]  # file, line, function


def with_library_lines(cell: CellEvidence, cause: Finding) -> Finding:
    """The finding with such a line as its place, and as that of the peers, where it has none."""
    if cause.outcome not in ("hung", "crashed"):
        return cause
    where, peers_at = cause.where or Where(), cause.peers_at
    found = None if where.file else _first(cell, cause.guilty_ranks)
    if peers_at is None and cause.outcome == "hung":
        peers_at = _first(cell, cause.blocked_ranks)
    if found is None and peers_at is cause.peers_at:
        return cause
    return dataclasses.replace(cause, where=where.at(found) if found else cause.where, peers_at=peers_at)


def _first(cell: CellEvidence, ranks: tuple[int, ...]) -> Place | None:
    """The line of the first rank that has one."""
    known = (rank for rank in cell.ranks if rank.rank in ranks)
    return next((place for rank in known if (place := _of(rank))), None)


def _of(rank: RankEvidence) -> Place | None:
    for frames in _stacks(rank):
        if any(is_user(file) for file, _, _ in frames):
            return None
        inner = next((frame for frame in frames if is_library(frame[0])), None)
        if inner:
            return dataclasses.replace(locations.place(*inner), library=True)
    return None


def _stacks(rank: RankEvidence) -> Iterator[list[Frame]]:
    """Stacks of the exception that ended it, then of the last snapshot; innermost first."""
    if rank.exception:
        yield [(f.file, int(f.line), f.function) for f in rank.exception.frames[::-1]]
    if rank.last_capture:
        frames = rank.last_capture.main_frames
        yield [(f.filename, f.line, f.name) for f in frames]

"""The line of an installed package at which a rank is or failed, where its stack has no line of the user's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.records import Finding, Place, Where
from nsadiag.evidence.user_code import is_library, is_user

Frame = tuple[str, int, str]  # file, line, function


def shown(cell: CellEvidence, cause: Finding) -> Finding:
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

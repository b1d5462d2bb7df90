"""NCCL's own account of its communicators (RAS): ras.json."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.evidence.documents.values import Pid, Whole


@dataclass(frozen=True, kw_only=True)
class CommunicatorRank:
    """One member, by its rank in the communicator."""

    rank: int
    pid: Pid | None = None
    collective_counts: dict[str, Whole] | None = None  # launched so far, by operation


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator, with the members that answered."""

    hash: str = ""
    size: int = 0
    ranks: tuple[CommunicatorRank, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NcclStatus:
    """All communicators of the job at one moment."""

    communicators: tuple[Communicator, ...] = ()

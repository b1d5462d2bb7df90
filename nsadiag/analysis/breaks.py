"""The order in which ranks broke: one of them did first, and the others followed."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

from nsadiag.analysis.load import CellEvidence, RankEvidence

# What a rank says when a peer has gone, or kept it waiting for too long: consequences, never causes.
FOLLOWS_A_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|recvbytes failed|sendbytes failed|failed to recv"
    r"|remote process exited|ncclremoteerror|ncclsystemerror|nccl communicator was aborted|timed out waiting"
    r"|wait timeout|socket timeout|heartbeat|store.*(closed|timeout)|exceed(ed)? timeout|watchdog",
    re.IGNORECASE,
)
FOLLOWER_TYPES = ("DistNetworkError", "DistStoreError", "SignalException", "KeyboardInterrupt")


@dataclass(frozen=True, kw_only=True)
class Break:
    """One rank's end, other than at the end of its work."""

    rank: RankEvidence
    kind: Literal["killed", "exception", "exited"]
    t_s: float
    follows_a_peer: bool = False


def follows_a_peer(exception: dict[str, str]) -> bool:
    """Whether the exception only says that a peer is gone."""
    return exception["type"] in FOLLOWER_TYPES or bool(FOLLOWS_A_PEER.search(exception["message"]))


def breaks(cell: CellEvidence) -> list[Break]:
    """All of them, earliest first."""
    found = [b for rank in cell.ranks for b in _of_rank(cell, rank)]
    return sorted(found, key=lambda b: b.t_s)


def _of_rank(cell: CellEvidence, rank: RankEvidence) -> list[Break]:
    end = rank.end
    found = []
    if rank.exception and rank.exception.get("thread") == "MainThread":
        t_s = (rank.exception["t_mono_ns"] - cell.started_mono_ns) / 1e9
        ending_s = cell.watch.get("ending_s")
        # What a rank says while we end it is no more a break than its death.
        if ending_s is None or t_s < ending_s:
            found.append(
                Break(rank=rank, kind="exception", t_s=t_s, follows_a_peer=follows_a_peer(rank.exception))
            )
    if end.get("signal") and not end.get("by_us") and not end.get("clean"):
        # Launchers end the ranks that are left by SIGTERM, and SIGKILL those that stay.
        follower = end["signal"] == signal.SIGTERM or bool(found)
        found.append(Break(rank=rank, kind="killed", t_s=end["t_s"], follows_a_peer=follower))
    elif end.get("t_s") is not None and not end.get("by_us") and not rank.exception:
        found.append(Break(rank=rank, kind="exited", t_s=end["t_s"]))
    return found


def first_break(cell: CellEvidence) -> Break | None:
    """The one that explains the others; None where every rank came to its end, or nothing broke.

    A rank that ended by itself is a break only if others were left behind.
    """
    found = breaks(cell)
    others = [b for b in found if b.kind != "exited"]
    ended_well = len(others) == 0 and len(found) == len(cell.ranks)
    stuck = cell.stopped == "hang" or any(b.follows_a_peer for b in others)
    causes = [b for b in found if not b.follows_a_peer and (b.kind != "exited" or (stuck and not ended_well))]
    # A rank that has exited while another raises its own error only came to its end a little earlier.
    real = [b for b in causes if b.kind != "exited"]
    return (real or causes or [None])[0]  # type: ignore[list-item]

"""The end of a rank, as a record of ends.json."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from nsadiag.agent.job.launch import Job
from nsadiag.agent.watching.state import RankState


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of a watch, on the monotonic clock: its begin, and the moment from which deaths are its own doing."""

    started_ns: int
    ending_since_ns: int | None


def end_of(rank: RankState, job: Job, reported: int | None, times: Times) -> dict[str, Any]:
    """`reported` is the status that the rank's launcher gave, if it did: negative for a signal."""
    end = rank.end
    code, number = (end.exit_code, end.signal) if end else (None, None)
    # A rank without a launcher is our own child: its status comes to us, however quickly it went.
    ours = job.poll() if rank.pid == getattr(job, "pid", None) else None
    reported = ours if reported is None else reported
    if code is None and number is None and reported is not None:
        code, number = (reported, None) if reported >= 0 else (None, -reported)
    ended_ns = end.t_mono_ns if end else time.monotonic_ns() if ours is not None else None
    since_ns = times.ending_since_ns
    return {
        "pid": rank.pid,
        "t_s": None if ended_ns is None else (ended_ns - times.started_ns) / 1e9,
        "exit_code": code,
        "signal": number,
        "by_us": since_ns is not None and (end is None or end.t_mono_ns > since_ns),
        "clean": rank.said_goodbye,
        "steps": rank.steps if rank.progress and rank.progress.sequence else None,
        "iterations": rank.iterations if rank.progress and rank.progress.sequence else None,
        "iterates_by": rank.progress.iterates_by if rank.progress else None,
    }

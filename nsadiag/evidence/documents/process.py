"""A rank's process as it registered itself: meta.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from nsadiag.evidence.documents.values import Pid, Rank, Whole, WorldSize


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The process, its place in the job, and how it was started."""

    rank: Rank | None = None
    local_rank: Rank | None = None
    world_size: WorldSize = 1
    pid: Pid | None = None
    ppid: int | None = None
    host: str = ""
    python: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    restart: int = 0
    logs: dict[str, str] = field(default_factory=dict)  # where they are
    memory: dict[str, int | None] = field(default_factory=dict)  # peaks at its end, in KiB
    meeting: str = ""  # where it met the others
    text_hash: str | None = None  # of one text, by this process's salt
    probes: str = ""  # that were asked for
    traceback_signal: int | None = None
    user_code: tuple[str, ...] = ()  # packages that count as the user's
    guessed: bool = False
    started_wall_ns: Whole = 0

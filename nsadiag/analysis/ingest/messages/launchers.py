"""Ends of ranks in the table of failures that torchrun prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from nsadiag.analysis.ingest.messages.lines import LogLine, Speaker, keep
from nsadiag.analysis.ingest.messages.prefixes import speaker_of

NUMBER = re.compile(r"^\s*\[\d+\]:\s*$")
ROW = re.compile(r"^\s+(?P<name>time|host|rank|exitcode)\s*: (?P<value>.*)$")
RANK = re.compile(r"(?P<rank>\d{1,7}) \(local_rank: (?P<local>\d{1,7})\)")
CODE = re.compile(r"(?P<code>-?\d{1,9}) \(pid: (?P<pid>\d{1,9})\)")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A rank's end as torchrun saw it."""

    rank: int
    code: int
    pid: int
    t_s: float | None
    line: int
    local_rank: int | None = None
    host: str = ""


class FailureTable:
    """torchrun's table: some rows for each rank that failed."""

    def __init__(self) -> None:
        self.found: list[Ended] = []
        self.owner: Speaker | None = None  # whose rows came last: a traceback below them is its own
        self._line = 0
        self._rows: dict[str, str] = {}

    @property
    def is_busy(self) -> bool:
        """Whether the lines that come may be rows."""
        return self._line > 0

    def read(self, line: LogLine) -> bool:
        """Take the next line of the log; returns whether it is one of a table."""
        if NUMBER.match(line.said):
            self._line, self._rows, self.owner = line.number, {}, None
            return True
        if not self._line:
            return False
        if not (row := ROW.match(line.said)):
            self._line = 0 if line.said.strip() else self._line
            return False
        self._rows[row["name"]] = row["value"].strip()
        if row["name"] == "exitcode":
            self._close()
        return True

    def _close(self) -> None:
        rank = RANK.match(self._rows.get("rank", ""))
        code = CODE.match(self._rows["exitcode"])
        if rank and code:
            ended = Ended(
                rank=int(rank["rank"]),
                code=int(code["code"]),
                pid=int(code["pid"]),
                t_s=_seconds(self._rows.get("time", "")),
                line=self._line,
                local_rank=int(rank["local"]),
                host=self._rows.get("host", ""),
            )
            keep(self.found, ended)
            self.owner = speaker_of(ended.rank, ended.local_rank, ended.pid, ended.host, "")
        self._line = 0


def _seconds(time: str) -> float | None:
    """torchrun writes `2026-11-21_13:45:01`."""
    try:
        return datetime.strptime(time, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return None

"""Ends of ranks in the table of failures that torchrun prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, LogLine

NUMBER = re.compile(r"\[\d+\]:\s*$")
ROW = re.compile(r"^\s+(?P<name>time|host|rank|exitcode)\s*: (?P<value>.*)$")
RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
CODE = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A rank's end as torchrun saw it."""

    rank: int
    code: int
    pid: int
    t_s: float | None
    line: int


class FailureTable:
    """torchrun's table: some rows for each rank that failed."""

    def __init__(self) -> None:
        self.found: list[Ended] = []
        self._line = 0
        self._rows: dict[str, str] = {}

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        if NUMBER.search(line.said):
            self._line, self._rows = line.number, {}
        elif self._line and (row := ROW.match(line.said)):
            self._rows[row["name"]] = row["value"].strip()
            if row["name"] == "exitcode":
                self._close()

    def _close(self) -> None:
        rank = RANK.match(self._rows.get("rank", ""))
        code = CODE.match(self._rows["exitcode"])
        if rank and code and len(self.found) < MOST_FACTS:
            self.found.append(
                Ended(
                    rank=int(rank["rank"]),
                    code=int(code["code"]),
                    pid=int(code["pid"]),
                    t_s=_seconds(self._rows.get("time", "")),
                    line=self._line,
                )
            )
        self._line = 0


def _seconds(time: str) -> float | None:
    """torchrun writes `2026-11-21_13:45:01`."""
    try:
        return datetime.strptime(time, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return None

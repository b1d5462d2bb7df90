"""NCCL's log (NCCL_DEBUG=INFO): ranks that began, and that finished, creating a communicator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, LogLine

INIT = re.compile(
    r"NCCL INFO (?:ncclCommInit\w+ |ncclCommSplit )?comm \S+ rank (?P<rank>\d+) n?[rR]anks (?P<size>\d+) .*?"
    r"commId (?P<id>0x[0-9a-fA-F]+) - Init (?P<state>START|COMPLETE)"
)


@dataclass(frozen=True, kw_only=True)
class InitLine:
    """A rank begins, or has ended, to create a communicator."""

    communicator: str
    size: int
    rank: int  # in the communicator
    complete: bool
    line: int


class InitLines:
    """All of a log, in its order."""

    def __init__(self) -> None:
        self.found: list[InitLine] = []

    def read(self, line: LogLine) -> None:
        """Take the next line of the log."""
        if " - Init " in line.text and (match := INIT.search(line.text)) and len(self.found) < MOST_FACTS:
            self.found.append(
                InitLine(
                    communicator=match["id"],
                    size=int(match["size"]),
                    rank=int(match["rank"]),
                    complete=match["state"] == "COMPLETE",
                    line=line.number,
                )
            )

"""NCCL's log (NCCL_DEBUG=INFO): ranks that began, and that finished, creating a communicator."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.records import CommunicatorInit

INIT = re.compile(
    r"NCCL INFO (?:ncclCommInit\w+ |ncclCommSplit )?comm \S+ rank (?P<rank>\d+) n?[rR]anks (?P<size>\d+) .*?"
    r"commId (?P<id>0x[0-9a-fA-F]+) - Init (?P<state>START|COMPLETE)"
)


def inits(text: str, source: str) -> Iterator[CommunicatorInit]:
    """All of a log, in its order."""
    for number, line in enumerate(text.splitlines(), 1):
        match = INIT.search(line)
        if match:
            yield CommunicatorInit(
                communicator=match["id"],
                size=int(match["size"]),
                rank=int(match["rank"]),
                complete=match["state"] == "COMPLETE",
                source=f"{source}#line {number}",
            )

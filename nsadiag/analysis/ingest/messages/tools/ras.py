"""The answer of NCCL's RAS client (`ncclras -v`): processes and ranks below the heading that says what is wrong with them."""

from __future__ import annotations

import re
from typing import Literal

from nsadiag.analysis.ingest.messages.lines import LogLine, keep
from nsadiag.evidence.messages import ToolAnswer

Kind = Literal["missing", "dead", "error", "operations"]
# Headings as NVIDIA/nccl src/ras/client_support.cc prints them.
HEADING = re.compile(r"^(?:#\d+-\d+ \([0-9a-fA-Fx]+\) )?(?P<kind>INCOMPLETE|DEAD|ERROR|MISMATCH)$")
KINDS: dict[str, Kind] = {
    "INCOMPLETE": "missing", "DEAD": "dead", "ERROR": "error", "MISMATCH": "operations"
}  # fmt: skip
OPERATIONS = re.compile(r"^ +\d+ ranks? (?:has|have) launched up to operation (?P<number>\d+)")
RANK = re.compile(
    r"^ +Rank (?P<rank>\d{1,9}) -- (?:GPU \S+(?: \([^)]*\))? managed by process (?P<pid>\d{1,9}) on node (?P<host>\S+)|\[process)"
)
PROCESS = re.compile(r"^ +Process (?P<pid>\d{1,9}) on node (?P<host>\S+) managing GPU")


class RasAnswer:
    """Each rank or process that it names."""

    def __init__(self) -> None:
        self.found: list[ToolAnswer] = []
        self._kind: Kind | None = None
        self._number: int | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the lines that come may belong to a heading."""
        return self._kind is not None

    def read(self, line: LogLine) -> bool:
        """Take the next line of the log; returns whether it is one of RAS's."""
        said = line.said.rstrip()
        if heading := HEADING.match(said):
            self._kind, self._number = KINDS[heading["kind"]], None
            return True
        if self._kind is None:
            return False
        if operations := OPERATIONS.match(said):
            self._number = int(operations["number"])
            return True
        named = RANK.match(said) or PROCESS.match(said)
        if named is None:
            if said and not said.startswith(" "):
                self._kind = None
            return False
        ranks = (int(named["rank"]),) if "rank" in named.groupdict() else ()
        answer = ToolAnswer(
            line=line.number,
            text=said.strip(),
            tool="nccl ras",
            kind=self._kind,
            ranks=ranks,
            pid=int(named["pid"]) if named["pid"] else None,
            host=named["host"] or "",
            number=self._number,
        )
        keep(self.found, answer)
        return True

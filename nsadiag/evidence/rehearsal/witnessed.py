"""`witness.jsonl`: what a rank of a rehearsal computed, in its order, so that two rehearsals can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nsadiag.evidence.documents.values import value_of
from nsadiag.evidence.layout import read_json_lines

What = Literal["call", "loss", "step", "file"]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One line: a call with its input, a loss at its backward, the parameters after a step, or a file that is written.

    `value` is a digest of the numbers; `finite` is None where there are none.
    """

    what: What
    op: str = ""  # of a call
    group: str = ""
    members: tuple[int, ...] = ()
    place: str = ""  # file:line:function
    value: str = ""
    finite: bool | None = None
    path: str = ""  # of a file


def read_seen(path: Path) -> list[Seen]:
    """All lines; a truncated last one is skipped."""
    return [value_of(Seen, line) for line in read_json_lines(path)]

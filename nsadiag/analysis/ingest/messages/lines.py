"""One line of a log: who wrote it, and what it says behind its prefix."""

from __future__ import annotations

from dataclasses import dataclass

MOST_FACTS = 20_000  # of one kind in one log: whoever writes more says nothing new
MOST_SPEAKERS = 20_000  # whose open blocks are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """What one process wrote."""

    number: int  # in the log
    rank: int | None
    said: str  # without the prefix
    text: str  # the whole line, without colours

"""One line of a log: which process wrote it, and what it says behind its prefix."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass, field
from typing import TypeVar

Kept = TypeVar("Kept")
MOST_FACTS = 20_000  # of one kind in one log: whoever writes more says nothing new
MOST_SPEAKERS = 20_000  # whose open blocks are kept
STAMP = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T _]?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Speaker:
    """A process, as far as the prefix of its lines names it; whatever it does not say is None or empty."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    host: str = ""  # also a pod, or an address
    worker: str = ""  # the name of an actor, a service or a program, or what else its lines begin with
    # A bare number before a line, as `srun --label` writes it: users number their own output too.
    is_label: bool = False


NOBODY = Speaker()


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """All that stands before a message."""

    speaker: Speaker = NOBODY
    level: str = ""  # error, warning, info, ...; empty where none is given
    time: str = ""  # as written
    stream: str = ""  # stdout or stderr
    device: int | None = None  # NCCL's number of the GPU


NO_PREFIX = Prefix()


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of one process, without what stands before it."""

    number: int  # in the log
    said: str  # without the prefix
    text: str  # the whole line, without colours
    prefix: Prefix = field(default=NO_PREFIX)

    @property
    def speaker(self) -> Speaker:
        return self.prefix.speaker


def stamp_ns(time: str) -> int:
    """A stamp with a date in ns, as its own clock shows it; 0 of anything else."""
    found = STAMP.match(time)
    if found is None:
        return 0
    *whole, fraction = found.groups(default="0")
    try:
        seconds = calendar.timegm((*map(int, whole), 0, 0, 0))
    except ValueError:
        return 0
    return seconds * 10**9 + int(fraction.ljust(9, "0"))


def keep(found: list[Kept], one: Kept, most: int = MOST_FACTS) -> None:
    """Append it, unless so many are kept already."""
    if len(found) < most:
        found.append(one)

"""Lines that look like an error and that nothing understands: those that come most often, so that a reader can tell us."""

from __future__ import annotations

import re

from nsadiag.analysis.ingest.messages.lines import LogLine
from nsadiag.evidence.messages import Unread

LOOKS_LIKE_AN_ERROR = re.compile(
    r"\b(?:\w*error|\w*exception|fail(?:ed|ure|s)?|fatal|abort(?:ed|ing)?|killed|tim(?:ed|e) ?out|refused|denied|unreachable|cannot|can't"
    r"|unable to|oom|panic|segfault|corrupt(?:ed)?|crash(?:ed)?|unexpected(?:ly)?|invalid|lost|terminated|hang|stuck)\b",
    re.IGNORECASE,
)
ERROR_LEVELS = ("error", "fatal", "critical")
# What says that there is none, or belongs to the stack of another message.
IS_NONE = re.compile(
    r"\b(?:no|0|without) (?:errors?|failures?)\b|^frame #\d+|errors?[=: ]+0\b", re.IGNORECASE
)
# Lines that say nothing beyond a message that is read beside them.
ECHOES = re.compile(
    r"^(?:Some NCCL operations have failed or timed out|To avoid data inconsistency, we are taking the entire process down"
    r"|terminate called after throwing|Root Cause \(first observed failure\)|Failures:|\S+ FAILED$|.*First PG on this rank to signal dumping"
    r"|.*preparing to dump debug info|Stack trace of the failed collective not found|.*ObservedError|\s*error_file\s*:|Extension modules:"
    r"|.*Observed flight recorder dump signal|\s*traceback : |Traceback \(most recent call last\)|.*ChildFailedError|\[E\w* .*\]\s*$"
    r"|Timeout \(\d+:\d\d:\d\d\)!|Exception raised from |.* invoked oom-killer|oom_reaper|Refer to the documentation|CUDA kernel errors might"
    r"|=+$|-+$|frame #\d+: |Signal \d+ \(SIG\w+\) received by PID)"
)
MOST_SHAPES = 5_000
MOST_SHOWN = 10
MOST_TEXT = 300
NO_DIGITS = str.maketrans("", "", "0123456789")


class UnreadLines:
    """Counted by their words, without numbers."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int | None, str]] = {}
        self._count: dict[str, int] = {}

    def read(self, line: LogLine) -> str | None:
        """Take a line that nothing else understood; returns the shape under which it is counted."""
        said = line.said.strip()
        likely = line.prefix.level in ERROR_LEVELS or LOOKS_LIKE_AN_ERROR.search(said[:2000])
        if not said or not likely or ECHOES.match(said) or IS_NONE.search(said[:2000]):
            return None
        shape = said[:MOST_TEXT].translate(NO_DIGITS)
        if shape not in self._first:
            if len(self._first) >= MOST_SHAPES:
                return None
            self._first[shape] = line.number, line.speaker.rank, said[:MOST_TEXT]
        self.again(shape)
        return shape

    def again(self, shape: str) -> None:
        """Count another line of the same words."""
        self._count[shape] = self._count.get(shape, 0) + 1

    def most(self) -> tuple[Unread, ...]:
        """The most frequent, each with its first line."""
        shapes = sorted(self._count, key=lambda s: (-self._count[s], self._first[s][0]))[:MOST_SHOWN]
        return tuple(
            Unread(line=number, rank=rank, text=text, count=self._count[shape])
            for shape in shapes
            for number, rank, text in [self._first[shape]]
        )

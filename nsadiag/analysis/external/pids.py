"""Ranks of processes, as lines of users' own say that name both: `rank 3 has pid 4711`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST = 100_000
RANK = r"(?<!local_)(?<!local )(?<!local-)(?:\b|world_|global_)rank[\"' =:]{0,3}(?P<rank>\d{1,7})\b"
PID = r"\bpid[\"' =:]{0,3}(?P<pid>\d{1,9})\b"
BOTH = tuple(re.compile(f"(?i:{first}.{{0,40}}?{second})") for first, second in ((RANK, PID), (PID, RANK)))


class Pids(dict[int, int]):
    """The rank of each pid, found while lines pass by."""

    def seen(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """The same lines."""
        for number, text in lines:
            if "pid" in text or "PID" in text:
                self._read(text)
            yield number, text

    def _read(self, text: str) -> None:
        found = BOTH[0].search(text) or BOTH[1].search(text)
        if found and len(self) < MOST:
            self[int(found["pid"])] = int(found["rank"])

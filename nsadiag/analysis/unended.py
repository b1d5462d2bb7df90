"""Events that a thread has begun and not ended: where it stands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nsadiag.evidence.blackbox import Phase

LOOKED_BACK = 4000  # events


def unended(events: npt.NDArray[np.void], thread: int | None) -> Iterator[np.void]:
    """The thread's, innermost first."""
    closed: dict[tuple[int, int], int] = {}
    for event in events[::-1][:LOOKED_BACK]:
        if event["thread"] != thread or event["phase"] == Phase.POINT:
            continue
        key = int(event["kind"]), int(event["name"])
        if event["phase"] == Phase.END:
            closed[key] = closed.get(key, 0) + 1
        elif closed.get(key):
            closed[key] -= 1
        else:
            yield event

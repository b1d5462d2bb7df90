"""Events that a thread has begun and not ended: where it stands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nsadiag.evidence.ring.blackbox import Phase

LOOKED_BACK = 4000  # events
FIELDS = ("kind", "name", "phase")


def unended(events: npt.NDArray[np.void], thread: int | None) -> Iterator[np.void]:
    """The thread's, innermost first."""
    closed: dict[tuple[int, int], int] = {}
    recent = events[::-1][:LOOKED_BACK]
    own = recent[(recent["thread"] == (-1 if thread is None else thread)) & (recent["phase"] != Phase.POINT)]
    end = int(Phase.END)
    # In plain lists: a field of one record at a time costs ten times as much.
    for place, (kind, name, phase) in enumerate(zip(*(own[f].tolist() for f in FIELDS), strict=True)):
        key = kind, name
        if phase == end:
            closed[key] = closed.get(key, 0) + 1
        elif closed.get(key):
            closed[key] -= 1
        else:
            yield own[place]

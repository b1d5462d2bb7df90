"""Events that a thread has begun and not ended."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.evidence.ring.blackbox import Phase
from nsadiag.evidence.ring.reader import Event, Recording

LOOKED_BACK = 4000  # events
FIELDS = ("kind", "name", "phase")


def open_spans(recording: Recording) -> Iterator[Event]:
    """The main thread's, innermost first."""
    recent = recording.events[::-1][:LOOKED_BACK]
    pid = -1 if recording.pid is None else recording.pid
    own = recent[(recent["thread"] == pid) & (recent["phase"] != Phase.POINT)]
    closed: dict[tuple[int, int], int] = {}
    places, end = [], int(Phase.END)
    # Paired before they are decoded: most have ended.
    for place, (kind, name, phase) in enumerate(zip(*(own[f] for f in FIELDS), strict=True)):
        key = kind, name
        if phase == end:
            closed[key] = closed.get(key, 0) + 1
        elif closed.get(key):
            closed[key] -= 1
        else:
            places.append(place)
    return recording.decode(own.take(places))

"""Begins and ends of one rank's events, paired: the only place that says which end is whose, and what is still open."""

from __future__ import annotations

from collections.abc import Hashable

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table

# Their ends repeat the number of their begins: where a ring has lost events, one call is not taken for another.
CALLS = frozenset({int(Kind.COLLECTIVE), int(Kind.PROCESS_GROUP)})
KEYS = ("kind", "thread", "name", "a")


def spans_in(events: Table) -> dict[int, int | None]:
    """The place of each begin in the table, in order, with that of its end; None where nothing ended it.

    An end closes the newest open begin of its thread, kind and name, of a call also of its number. An end without a
    begin is left out: the ring has overwritten what it ended.
    """
    begin, end = int(Phase.BEGIN), int(Phase.END)
    found: dict[int, int | None] = {}
    open_: dict[Hashable, list[int]] = {}
    rows = zip(*(events[name] for name in KEYS), strict=True)
    for place, (phase, row) in enumerate(zip(events["phase"], rows, strict=True)):
        if phase == begin:
            found[place] = None
            open_.setdefault(row if row[0] in CALLS else row[:3], []).append(place)
        elif phase == end and (begun := open_.get(row if row[0] in CALLS else row[:3])):
            found[begun.pop()] = place
    return found

"""A rank goes round in a loop of its own code, at full CPU, and nothing in that loop ever changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsadiag.analysis import places
from nsadiag.analysis.inside import finding, inside
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.silence import LEAST_S, PAUSES
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import is_still
from nsadiag.evidence.records import Evidence, Finding, Rejected


def _motion(cell: CellEvidence, rank: int) -> dict[str, Any]:
    """The rank's, in the last look; when time was up, in the last that showed its loop: a busy machine hides it in some."""
    looks = [
        m for look in cell.watch.get("looks", []) for m in look.get("motions", []) if m.get("rank") == rank
    ]
    if not is_still(cell):
        looks = [motion for motion in looks if motion.get("loop")]
    return looks[-1] if looks else {}


def _goes_round(cell: CellEvidence, motion: dict[str, Any]) -> bool:
    """Whether the watch called it endless; or, when time was up, whether it had shown nothing new for long."""
    loop = motion.get("loop")
    if not loop:
        return False
    if is_still(cell):
        return bool(motion.get("endless"))
    limit = max(LEAST_S, PAUSES * float(cell.watch.get("longest_quiet_s") or 0.0))
    return cell.stopped == "timeout" and not loop["changes"] and loop["seconds"] > limit


def livelock_user_code(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    for stuck in inside(cell, tables):
        motion = _motion(cell, stuck.number)
        if not _goes_round(cell, motion):
            continue
        loop, sure = motion["loop"], is_still(cell)
        number = stuck.number
        at = places.place(loop["file"], loop["line"], loop["function"])
        sees = "the variables that decide when it ends" if loop["decided"] else "any variable in it"
        yield finding(
            cell,
            stuck,
            cls="livelock_user_code",
            confidence=(0.9 if loop["decided"] else 0.8) if sure else 0.6,
            summary=f"Rank {number} goes round in the loop at {places.short(at)} without getting anywhere: for {loop['seconds']:.0f} s none of {sees} took a new value.",
            at=at,
            evidence=(
                Evidence(
                    claim=f"{loop['samples']} samples of the last look show {loop['stacks']} stacks, all in that loop (lines {', '.join(map(str, loop['lines']))}), and no new value in {sees}",
                    source="watch.json#looks",
                ),
                Evidence(
                    claim=f"its main thread used {motion.get('loop_cpu_share', motion['main_cpu_share']):.2f} CPUs, wrote no event and read or wrote {motion['io_bytes']} bytes",
                    source="watch.json#looks",
                ),
            ),
            rejected=(
                Rejected(
                    cls="local_lock_deadlock", because="the thread runs, it waits for nothing in the kernel"
                ),
                Rejected(
                    cls="slow_compute",
                    because="a loop that works goes on to new values; this one shows those it had before",
                ),
            ),
            fix="Make sure that each round changes what the loop's condition asks, or let the loop give up after a number of rounds, with an error that says so.",
        )

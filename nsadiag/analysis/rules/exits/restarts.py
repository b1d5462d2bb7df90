"""An exception in an attempt before the launcher restarted the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer, headline, is_of_a_collective, place_of
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.exits.exception_advice import class_of, fix_of
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.records import Strength


def before_a_restart(cell: CellEvidence) -> Iterator[Draft]:
    """An exception before a restart after which the ranks only failed to find each other."""
    ended = [(number, e, rank) for rank in cell.ranks for number, e in rank.attempts if _is_original(e)]
    if not ended:
        return
    number, exception, rank = min(ended, key=lambda row: (-row[0], row[1].t_mono_ns))
    root = first_of(exception)
    raised = f"rank {rank.rank} raised {headline(root)}"
    evidence = {
        f"{raised}, first of all in attempt {number}": f"{rank.source}/attempts/{number:02d}/exception.json"
    }
    for other in breaks(cell)[:3]:
        if last := other.rank.exception:
            claim = f"rank {other.rank.rank} failed in the last attempt: {headline(last)}"
            evidence[claim] = f"{other.rank.source}/exception.json"
    yield Draft(
        cls=class_of(root),
        outcome="crashed",
        strength=Strength.STRONG,
        summary=f"Rank {rank.rank} raised {headline(root)} in attempt {number}; the launcher restarted all ranks, and the new ones only failed to reach each other.",
        guilty_ranks=(rank.rank,),
        at=place_of(root) or place_of(exception),
        evidence=evidence,
        fix=fix_of(root, "Fix the line shown: without it there would have been no restart."),
    )


def last_attempt_failed(cell: CellEvidence) -> bool:
    """Whether the last attempt failed too: one that completed has recovered."""
    return any(b.kind != "exited" or b.follows_a_peer or b.rank.end.exit_code for b in breaks(cell))


def _is_original(exception: Raised) -> bool:
    root = first_of(exception)
    return exception.in_main_thread and not follows_a_peer(root) and not is_of_a_collective(root)

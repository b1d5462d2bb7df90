"""What a log says in so many words: who did not come to a barrier, who ended with an exit code."""

from __future__ import annotations

from nsadiag.analysis.foreign.load import Foreign
from nsadiag.analysis.foreign.view import NEXT, ranks_first, ranks_text
from nsadiag.evidence.records import Evidence, Finding, Rejected


def never_came(foreign: Foreign, ranks: tuple[int, ...], source: str) -> Finding:
    """A monitored barrier names those who did not come."""
    others = tuple(r for r in range(foreign.cell.world_size) if r not in ranks)
    return Finding(
        detector="crowd",
        cls="missing_rank",
        outcome="hung",
        confidence=0.85,
        summary=f"{ranks_first(ranks)} never came to the monitored barrier in which the others waited.",
        guilty_ranks=ranks,
        blocked_ranks=others,
        evidence=(
            Evidence(claim=f"the barrier's own words: {ranks_text(ranks)} failed to pass it", source=source),
        ),
        rejected=(Rejected(cls="rank_exception", because=f"no traceback of {ranks_text(ranks)}"),),
        gaps=(f"no stack of {ranks_text(ranks)}: what it did instead is not known",),
        fix="Find what keeps the rank from that barrier.",
        next=NEXT,
    )


def ended_with_code(foreign: Foreign, ranks: tuple[int, ...], code: int) -> Finding:
    """The launcher saw it end first, and nothing here says of what."""
    others = tuple(r.rank for r in foreign.cell.ranks if r.rank not in ranks)
    return Finding(
        detector="crowd",
        cls="rank_exception",
        outcome="crashed",
        confidence=0.6,
        summary=f"{ranks_first(ranks)} was the first to end, with exit code {code}; its traceback is not among these files.",
        guilty_ranks=ranks,
        blocked_ranks=others,
        evidence=(Evidence(claim=f"the launcher saw exit code {code}", source=foreign.told.launcher),),
        rejected=(
            Rejected(cls="rank_killed", because="no signal ended it"),
            Rejected(cls="rank_exited_early", because=f"exit code {code} is not that of a clean end"),
        ),
        gaps=(f"no log of {ranks_text(ranks)}",),
        fix="Read that rank's own stderr.",
        next="torchrun --log-dir logs --redirects 3 --tee 3 <the same script>, then: nsadiag analyze logs",
    )

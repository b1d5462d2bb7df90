"""The rank that waited least in DeepSpeed's summary of communication, where its peers waited for much longer than their communication takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined, SummarisedWaits
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Strength

OWN_SHARE = 0.2  # of what its peers waited: whoever waited less is the one they waited for


def summarised_waits(case: Case) -> Iterator[Draft | Declined]:
    rows = case.told.summarised
    if rows:
        yield _draft(sorted(rows, key=lambda row: row.more_ms))


def _draft(rows: list[SummarisedWaits]) -> Draft:
    usual_ms = statistics.median(row.more_ms for row in rows[len(rows) > 1 :])
    late = [row for row in rows[:-1] if row.more_ms < OWN_SHARE * usual_ms]
    named = tuple(sorted(row.rank for row in late))
    waited = next(row for row in rows if row.more_ms >= usual_ms)
    length = f"{waited.more_ms / 1e3:.1f} s, beside {waited.least_ms / 1e3:.1f} s of communication"
    return Draft(
        cls="straggler_rank",
        outcome="slow",
        strength=Strength.LIKELY if len(named) == 1 else Strength.GUESS,
        summary=f"{these(named).capitalize()} came late to collectives: rank {waited.rank} waited for it for {length}."
        if named
        else f"Rank {waited.rank} waited for ranks that came late to its collectives for {length}.",
        guilty_ranks=named,
        blocked_ranks=tuple(sorted(row.rank for row in rows if row not in late)),
        evidence={
            f"rank {row.rank} waited for {row.more_ms / 1e3:.1f} s": row.source for row in (*late[:2], waited)
        },
        gaps=() if named else ("no summary of the ranks that it waited for: each rank prints its own",),
        next="nsadiag run -- <the same command>: the line on which that rank spends the time",
    )


RULE = Rule(
    concludes=("straggler_rank",),
    about="collected",
    family="performance",
    detected="By the summaries that DeepSpeed prints of each rank's communication (`log_summary(show_straggler=True)`): ranks waited for more than a fifth of their communication, and one waited for less than a fifth of what its peers did.",
    fix="Look at what the rank does between its collectives: its input, its share of the work, its host.",
    actions=("stop",),
    check=summarised_waits,
    needs=(),
    explained_by=("straggler_rank",),
    confused_with=("network_stall", "slow_compute"),
)

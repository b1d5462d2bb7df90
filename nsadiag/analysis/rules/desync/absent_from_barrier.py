"""A rank that torch's monitored barrier names, since it did not come in time."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Strength


def absent_from_barrier(case: Case) -> Iterator[Draft | Declined]:
    cell, collected = case.cell, case.told
    if not collected.absent_from_barrier:
        return
    ranks = collected.absent_from_barrier
    for each in cell.ranks:
        if each.rank in ranks and each.exception:
            yield Declined(
                f"rank {each.rank} raised {each.exception.type} by itself", f"{each.source}/exception.json"
            )
            return
    yield Draft(
        cls="missing_rank",
        outcome="hung",
        strength=Strength.CONCLUSIVE,
        summary=f"{these(ranks).capitalize()} never came to the monitored barrier in which the others waited.",
        guilty_ranks=ranks,
        blocked_ranks=tuple(r for r in range(cell.world_size) if r not in ranks),
        evidence={f"the barrier's own words: {these(ranks)} failed to pass it": collected.barrier_log},
        gaps=(
            f"no stack of {these(ranks)}: what {'it' if len(ranks) == 1 else 'they'} did instead is not known",
        ),
        fix="Find what keeps the rank from that barrier.",
    )


RULE = Rule(
    concludes=("missing_rank",),
    about="collected",
    family="divergence",
    detected="A log has the words with which torch's monitored barrier names the ranks that did not come, and no exception of theirs.",
    fix="Find what keeps the rank from that barrier.",
    actions=("stop",),
    check=absent_from_barrier,
    needs=(),
    confused_with=("rank_exception", "rank_killed"),
)

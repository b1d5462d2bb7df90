"""A rank that torch's monitored barrier names, since it did not come in time."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Strength


def absent_from_barrier(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    ranks = cell.collected.absent_from_barrier if cell.collected else ()
    if not ranks or cell.collected is None:
        return
    raised = [r for r in cell.ranks if r.rank in ranks and r.exception]
    if raised:
        first = raised[0].exception
        yield Declined(
            f"rank {raised[0].rank} raised {first.type if first else ''} by itself",
            f"{raised[0].source}/exception.json",
        )
        return
    yield Draft(
        cls="missing_rank",
        outcome="hung",
        strength=Strength.CONCLUSIVE,
        summary=f"{these(ranks).capitalize()} never came to the monitored barrier in which the others waited.",
        guilty_ranks=ranks,
        blocked_ranks=tuple(r for r in range(cell.world_size) if r not in ranks),
        evidence={f"the barrier's own words: {these(ranks)} failed to pass it": cell.collected.barrier_log},
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

"""A rank of a rehearsal that goes around a loop of its own far more often than ever before, and gets no nearer to its end."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.paths.endless import endless_of_case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import was_given_up
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength


def endless_loop(case: Case) -> Iterator[Draft | Declined]:
    if not was_given_up(case.cell):
        return
    for found in case.once(endless_of_case):
        at = found.place
        yield Draft(
            outcome="hung",
            strength=Strength.WEAK if found.is_weak else Strength.LIKELY,
            summary=f"Rank {found.rank} spins in the loop at {locations.short(at)}: it {found.words}.",
            guilty_ranks=(found.rank,),
            blocked_ranks=found.waiting,
            at=at,
            evidence={
                f"rank {found.rank} took the same lines {found.iterations:,} times, without a call": f"{case.cell.rank(found.rank).source}/paths.bin"
            },
        )


RULE = Rule(
    family="blocked",
    detected="In a rehearsal that was cut off, while peers wait in a call, or every rank does so: since its own last call the rank has gone around one loop that has no end of its own 100 times at least, and ten times as often as between any two calls before. All that could end it is on record, and took no new value in the later half; or cannot decide any more, as a comparison with nan.",
    fix="Make sure that each iteration changes what the loop's condition tests, or let the loop give up with an error after a number of iterations.",
    check=endless_loop,
    concludes=("livelock_user_code",),
    explained_by=("livelock_user_code",),
    confused_with=("slow_compute", "straggler_rank"),
)

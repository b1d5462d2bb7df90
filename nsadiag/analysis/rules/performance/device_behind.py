"""A rank that issued the collective in which its peers' devices wait, and whose own device has not come to it."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import PendingCall, waits
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import call_name, these, waits_wait
from nsadiag.evidence.records import Strength, Where


def device_behind(case: Case) -> Iterator[Draft | Declined]:
    for wait in waits(case):
        if wait.late and not (wait.missing or wait.outliers) and not case.thread_states:
            yield _draft(case, wait)
        elif wait.waiting and case.cell.collected:
            call, first = call_name("call", wait.seq, wait.group), wait.waiting[0]
            fact = f"the devices of {these(wait.waiting)}, which issued {call}, are equally far"
            if wait.missing:
                fact = f"{these(wait.missing)} never issued {call}"
            yield Declined(fact, wait.source(case.cell, first))


def _draft(case: Case, wait: PendingCall) -> Draft:
    cell, behind, first = case.cell, wait.late, wait.started[0]
    call = call_name(wait.collective(behind[0]).op, wait.seq, wait.group)
    started = cell.everyone(wait.started)
    return Draft(
        cls="straggler_rank",
        outcome="slow",
        strength=Strength.LIKELY if len(cell.everyone(behind)) < len(started) else Strength.GUESS,
        summary=f"{named(cell, behind).capitalize()} issued {call} like all others, but the device has not come to it, while {len(started):,} of {cell.world_size:,} ranks wait in it: it is behind with what comes before.",
        guilty_ranks=behind,
        blocked_ranks=wait.started,
        at=wait.issued_at(cell, behind[0]),
        where=Where(collective=wait.collective(behind[0])),
        peers_at=wait.issued_at(cell, first),
        evidence={
            f"{named(cell, wait.started)} {waits_wait(started)} in {call} on the device": wait.source(
                cell, first
            ),
            f"rank {behind[0]} has issued it, and its device has not begun it": wait.source(cell, behind[0]),
        },
        gaps=(
            "one dump a rank does not tell a slow device from one whose kernel never ends (gpu_kernel_hang): a second dump would",
        ),
        fix=f"Look at what {named(cell, behind)} computes before that line: more data than the others, a slower GPU, or a kernel that never ends.",
    )


RULE = Rule(
    concludes=("straggler_rank",),
    family="performance",
    detected="By flight-recorder dumps without stacks: every member issued the collective, the devices of most have begun it, and those of some have not.",
    fix="Look at what the rank computes before that line.",
    actions=("stop",),
    check=device_behind,
    needs=("flight_recorders",),
    explained_by=("straggler_rank",),
    confused_with=("missing_rank", "network_stall"),
)

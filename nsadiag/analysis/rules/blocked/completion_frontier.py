"""Ranks whose device is stuck, by the completion frontier of each group: their peers have completed a collective that they have not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import PendingCall, is_still, waits
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import call_name, these, waits_wait, was
from nsadiag.evidence.records import Strength, Where

# Of these a member may complete its part without the others: the source of a broadcast, whoever sends to one rank.
ONE_SIDED = re.compile(
    r"broadcast|scatter$|(?<!all_)gather$|(?<!all_)reduce$|send|recv|coalesced", re.IGNORECASE
)
MOST_SHOWN = 4


def completion_frontier(case: Case) -> Iterator[Draft | Declined]:
    found = waits(case)
    # A stack shows what the host waits for, which says more.
    if case.thread_states or not is_still(case.cell):
        return
    behind = [wait for wait in found if _is_behind(case, wait)]
    if behind:
        yield _draft(case, _naming_all(behind))
    for wait in (each for each in found if each not in behind):
        call = call_name(_op(wait), wait.seq, wait.group)
        fact = f"no member of {wait.group} has completed {call}, in which {these(wait.waiting)} {waits_wait(wait.waiting)}"
        if wait.completed:
            fact = f"{these(wait.completed)} {was(wait.completed)} past #{wait.seq} of {wait.group}, and nothing shows that it was {call} there too"
        yield Declined(fact, wait.source(case.cell, wait.waiting[0]))


def _is_behind(case: Case, wait: PendingCall) -> bool:
    """Whether some completed the call for which it takes all members. Of a rank whose later call timed out nothing says what it made under this number."""
    known = not any(is_of_a_log(case.cell.rank(rank)) for rank in wait.completed)
    return known and wait.is_on_some_devices and not ONE_SIDED.search(_op(wait))


def _op(wait: PendingCall) -> str:
    return wait.collective(wait.waiting[0]).op


def _naming_all(behind: list[PendingCall]) -> list[PendingCall]:
    """As few of them as name every rank that is behind."""
    chosen: list[PendingCall] = []
    named_: set[int] = set()
    for wait in sorted(behind, key=lambda each: (-len(each.waiting), each.group)):
        if not named_ >= {*wait.waiting} and len(chosen) < MOST_SHOWN:
            chosen.append(wait)
            named_ |= {*wait.waiting}
    return chosen


def _draft(case: Case, behind: list[PendingCall]) -> Draft:
    cell = case.cell
    guilty = tuple(sorted({rank for wait in behind for rank in wait.waiting}))
    first = behind[0]
    said, evidence = [], {}
    for wait in behind:
        call, own, others = (
            call_name(_op(wait), wait.seq, wait.group),
            named(cell, wait.waiting),
            named(cell, wait.completed),
        )
        it = "it" if len(cell.everyone(wait.waiting)) == 1 else "they"
        said.append(f"{own} issued {call}, which {others} completed and {it} did not")
        evidence[f"{others} completed {call}; {own} issued it, and it is not complete there"] = wait.source(
            cell, wait.waiting[0]
        )
    return Draft(
        cls="gpu_kernel_hang",
        strength=Strength.LIKELY,
        summary=f"The device of {named(cell, guilty)} is stuck: {'; '.join(said)}.",
        guilty_ranks=guilty,
        at=first.issued_at(cell, first.waiting[0]),
        where=Where(collective=first.collective(first.waiting[0])),
        evidence=evidence,
        gaps=(
            "dumps do not tell a kernel that never ends from a device that has failed: look for Xid errors in the host's kernel log",
        ),
        fix=f"Look at the GPU of {named(cell, guilty)} (dmesg for Xid errors, nvidia-smi -q), and at the kernel that was launched last there.",
    )


RULE = Rule(
    concludes=("gpu_kernel_hang",),
    family="waiting",
    detected="By flight-recorder dumps without stacks: some members have completed a collective for which the data of all had to arrive, and on others it is not complete.",
    fix="Look at the GPU of the ranks named, and at the kernel that was launched last there.",
    actions=("exclude host", "retry"),
    check=completion_frontier,
    needs=("flight_recorders",),
    explained_by=("collective_order_mismatch",),
    confused_with=("missing_rank", "network_stall"),
)

"""A communicator of NCCL's that some ranks began to create and none has completed."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.records import CommunicatorInit, Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import these, waits_wait
from nsadiag.evidence.records import Strength


def unmade_communicator(case: Case) -> Iterator[Draft | Declined]:
    by_id: dict[str, list[CommunicatorInit]] = {}
    for init in case.told.communicators:
        by_id.setdefault(init.communicator, []).append(init)
    for rows in by_id.values():
        done = next((row for row in rows if row.complete), None)
        if done:
            yield Declined(
                f"rank {done.rank} completed the communicator {done.communicator} of {done.size} ranks",
                done.source,
            )
        elif case.cell.unnamed:
            first = case.cell.unnamed[0]
            yield Declined(f"a process raised {first.type} meanwhile", first.source)
        elif len({row.rank for row in rows}) * 2 <= rows[0].size:
            yield Declined(
                f"most of the {rows[0].size} ranks of the communicator {rows[0].communicator} have no line of NCCL's in these files: it is their logs that are missing",
                rows[0].source,
            )
        elif first_break(case.cell) is None:
            yield _draft(case, rows)


def _draft(case: Case, rows: list[CommunicatorInit]) -> Draft:
    size, came = rows[0].size, tuple(sorted({row.rank for row in rows}))
    absent = tuple(sorted({*range(size)} - {*came}))
    # In a communicator of a part of the job, NCCL's numbers are not those of the job.
    whole = size == case.cell.world_size
    numbers = "" if whole else " (as numbered in it)"
    what = f"the communicator {rows[0].communicator} of {size} ranks"
    return Draft(
        cls="process_group_mismatch" if absent else "network_stall",
        outcome="hung",
        strength=Strength.WEAK if absent else Strength.GUESS,
        summary=f"{these(absent).capitalize()}{numbers} never came to create {what}, in which {these(came)}{numbers} {waits_wait(came)}."
        if absent
        else f"All {size} ranks began to create {what}, and none has completed it.",
        guilty_ranks=absent if whole else (),
        blocked_ranks=came if whole else (),
        evidence={f"{these(came)}{numbers} began to create {what}, and none completed it": rows[0].source},
        gaps=("a rank whose log is not among these files would be taken for one that did not come",),
        fix="Let every rank of the job create the same groups in the same order, each on its own GPU (set_device(LOCAL_RANK))."
        if absent
        else "Look at the network between the hosts: NCCL_SOCKET_IFNAME, firewalls, the lines of NCCL WARN.",
    )


RULE = Rule(
    concludes=("process_group_mismatch", "network_stall"),
    about="collected",
    family="exit",
    detected="NCCL's log (NCCL_DEBUG=INFO) shows ranks that began to create a communicator, and none that completed it; the ranks without such a line did not come.",
    fix="Let every rank of the job create the same groups in the same order.",
    actions=("stop",),
    check=unmade_communicator,
    needs=(),
    confused_with=("missing_rank", "network_stall"),
)

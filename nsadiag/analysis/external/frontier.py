"""Ranks whose device is stuck, by the completion frontier of each group: their peers have completed a collective that they have not."""

from __future__ import annotations

import re

from nsadiag.analysis.external.view import SHOWN, View
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Evidence, Finding, Strength

# Of these a member may complete its part without the others: the source of a broadcast, whoever sends to one rank.
ONE_SIDED = re.compile(
    r"broadcast|scatter$|(?<!all_)gather$|(?<!all_)reduce$|send|recv|coalesced", re.IGNORECASE
)


def of_all_members(view: View) -> bool:
    """Whether nobody can complete the collective without all members, and the dumps are not of a moment of a running job."""
    asked = next((a for r in view.pending.waiting if (a := view.asked(r))), None)
    return asked is not None and not ONE_SIDED.search(asked.op) and not view.is_young


def behind(views: list[View]) -> Finding:
    """In one group or in several: each rank that has not completed what a peer has."""
    view = views[0]
    guilty = tuple(sorted({rank for each in views for rank in each.pending.waiting}))
    shown = [(each, first) for each in views[:SHOWN] if (first := each.asked(each.pending.waiting[0]))]
    evidence = [
        Evidence(
            claim=f"{these(each.pending.completed)} completed {each.name(first)}; {these(each.pending.waiting)} issued it, and it is not over there",
            source=first.source,
        )
        for each, first in shown
    ]
    said = "; ".join(
        f"{these(each.pending.waiting)} issued {each.name(first)}, which {these(each.pending.completed)} completed and {'it' if len(each.pending.waiting) == 1 else 'they'} did not"
        for each, first in shown
    )
    own = next((first for _, first in shown), None)
    return view.finding(
        cls="gpu_kernel_hang",
        strength=Strength.LIKELY,
        summary=f"The device of {these(guilty)} is stuck: {said}.",
        guilty_ranks=guilty,
        at=own,
        evidence=tuple(evidence),
        ruled_out={
            "missing_rank": f"{these(guilty)} issued it: the host went on, and the device did not",
            "network_stall": f"{these(view.pending.completed)} completed it, for which the data of all members had to arrive",
        },
        gaps=(
            "dumps do not tell a kernel that never ends from a device that has failed: look for Xid errors in the host's kernel log",
        ),
        fix=f"Look at the GPU of {these(guilty)} (dmesg for Xid errors, nvidia-smi -q), and at the kernel that was launched last there.",
        actions=("exclude host", "retry"),
    )

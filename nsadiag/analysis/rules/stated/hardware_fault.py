"""A GPU or link that has failed, as the driver reports it."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline, place_of
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.messages import HardwareFault
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Place, Strength, Where

MOST_CITED = 4
# By NVIDIA's table: an application's own error, which the driver reports as well (illegal accesses, a reset channel).
OF_APPLICATIONS = frozenset({13, 31, 43, 45, 69, 109})
KINDS = {
    "xid": "the driver reported Xid {number}",
    "ecc": "its memory has an uncorrectable error",
    "nvlink": "an NVLink failed",
    "lost": "the GPU has fallen off the bus",
    "thermal": "it was slowed down for its temperature",
}


def hardware_fault(case: Case) -> Iterator[Draft | Declined]:
    told = case.told
    faults = told.of(HardwareFault)
    real = [
        (fault, source)
        for fault, source in faults
        if fault.number not in OF_APPLICATIONS and fault.kind != "thermal"
    ]
    if not real:
        for fault, source in faults[:1]:
            yield Declined(f"{_said(fault)}: an application's own error is reported so as well", source)
        return
    ranks = tuple(sorted({r for fault, _ in real if (r := told.rank_of(fault)) is not None})) or _who_raised(
        case
    )
    fault, _ = real[0]
    cell, host = case.cell, next((each.host for each, _ in real if each.host), "")
    raised = next((r.exception for r in cell.ranks if r.rank in ranks and r.exception), None)
    device = f" at {fault.device}" if fault.device else ""
    where = f" of {these(ranks)}" if ranks else ""
    says = f"; it raised {headline(first_of(raised))}" if raised else ""
    yield Draft(
        cls="rank_exception",
        outcome="crashed",
        strength=Strength.STRONG if ranks else Strength.LIKELY,
        summary=f"The GPU{where}{device}{f' on {host}' if host else ''} has failed: {_said(fault)}{says}.",
        guilty_ranks=ranks,
        blocked_ranks=all_but(cell, ranks) if ranks else (),
        at=_place(cell, ranks),
        where=Where(host=host or None),
        evidence={each.text.splitlines()[0][:200]: source for each, source in real[:MOST_CITED] if each.text},
        gaps=() if ranks else ("no line tells which rank used that GPU",),
        fix="Drain that node, and test or replace the GPU (nvidia-smi -q, dcgmi diag -r 3); start the job again without it.",
        next="nvidia-smi -q -d ECC,PAGE_RETIREMENT; dmesg -T | grep -i xid   # on that node",
        actions=("exclude host", "retry"),
    )


def _place(cell: CellEvidence, ranks: tuple[int, ...]) -> Place | None:
    """The line of the user's at which an error of CUDA's came up."""
    raised = [r.exception for r in cell.ranks if r.rank in ranks and r.exception] + [*cell.unnamed]
    found = (place_of(first_of(each)) or place_of(each) for each in raised)
    return next((place for place in found if place), None)


def _who_raised(case: Case) -> tuple[int, ...]:
    """The one rank with an error of CUDA's, where it is one."""
    found = [r.rank for r in case.cell.ranks if r.exception and "CUDA" in first_of(r.exception).message]
    return tuple(found) if len(found) == 1 else ()


def _said(fault: HardwareFault) -> str:
    return KINDS[fault.kind].format(number=fault.number)


RULE = Rule(
    concludes=("rank_exception",),
    about="collected",
    family="divergence",
    detected="The kernel's log or an error names a fault of a GPU or its links: an Xid that no application causes, an uncorrectable error of its memory, a GPU that has fallen off the bus.",
    fix="Drain that node, and test or replace the GPU.",
    actions=("exclude host",),
    check=hardware_fault,
    confused_with=("rank_killed", "gpu_kernel_hang"),
)

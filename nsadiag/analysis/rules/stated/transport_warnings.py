"""The rank whose own GPU, memory or settings NCCL warns of, where the errors that follow name no rank or no cause."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline, place_of
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.drafts import all_but
from nsadiag.analysis.rules.exits.exception_advice import actions_of, class_of, fix_of, next_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Cause, Raised
from nsadiag.evidence.messages import TransportWarning
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Strength

OWN = ("cuda", "memory", "shared memory", "duplicate gpu")  # not of the other end
MOST_CITED = 4


def transport_warnings(case: Case) -> Iterator[Draft | Declined]:
    cell, told = case.cell, case.told
    warned = [(w, s) for w, s in told.of(TransportWarning) if w.about in OWN]
    if not warned:
        return
    first = first_break(cell)
    if first is not None:
        yield Declined(f"rank {first.rank.rank} failed by itself, as its own lines say", first.rank.source)
        return
    ranks = tuple(sorted({r for warning, _ in warned[:1] if (r := told.rank_of(warning)) is not None}))
    text = warned[0][0].text.splitlines()[0]
    said = text.partition("NCCL WARN ")[2] or text
    root = Cause(type="DistBackendError", message=said)
    raised = _raised(cell)
    yield Draft(
        cls=class_of(root),
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=f"NCCL warned {these(ranks) if ranks else 'a process'}: {said[:200]}",
        guilty_ranks=ranks,
        blocked_ranks=all_but(cell, ranks) if ranks else (),
        at=place_of(first_of(raised)) if raised else None,
        evidence={
            **{w.text.splitlines()[0][:200]: source for w, source in warned[:MOST_CITED]},
            **(
                {f"what followed: {headline(first_of(raised))}": raised.source}
                if raised and raised.source
                else {}
            ),
        },
        gaps=() if ranks else ("no line tells which rank that was",),
        fix=fix_of(root, "Read the lines of NCCL WARN before and behind this one."),
        next=next_of(root),
        actions=actions_of(root),
    )


def _raised(cell: CellEvidence) -> Raised | None:
    """The error that follows from it: of CUDA, if several were raised."""
    raised = [*(r.exception for r in cell.ranks if r.exception), *cell.unnamed]
    own = [each for each in raised if "cuda error" in first_of(each).message.lower()]
    return next(iter(own or raised), None)


RULE = Rule(
    concludes=("rank_exception", "gpu_oom"),
    about="collected",
    family="exit",
    detected="A line of NCCL WARN tells of a failure of the process's own: a call of CUDA's, memory, /dev/shm, a GPU that two ranks use; and no rank's own error says more.",
    fix="Read the lines of NCCL WARN: the first tells of the cause.",
    actions=("unknown",),
    check=transport_warnings,
    explained_by=("rank_exception", "process_end"),
    confused_with=("rank_killed", "network_stall"),
)

"""A rank that must exist and of which nothing was heard, while all that were heard of wait in one collective."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import PendingCall, is_still, waits
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import all_of, call_name, capitalized, these, waits_wait
from nsadiag.evidence.records import Strength, Where

CLEAR = 3  # as many times more ranks were heard of than not
OF_A_NODE = (8, 4)  # ranks that one node has, usually


def unseen_rank(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        return
    for wait in waits(case):
        unseen = tuple(r for r in wait.unseen if r in case.cell.absent)
        heard = case.cell.everyone(wait.waiting)
        # Of as many on either side those are named that never spoke, where nobody else can be missing.
        few = len(heard) + (case.cell.collected is not None and case.cell.collected.knows_size)
        if unseen and len(unseen) < few and not (wait.deviating or wait.completed):
            yield _draft(case, wait, unseen)
        else:
            yield Declined(_against(case, wait, unseen), wait.source(case.cell, wait.waiting[0]))


def _against(case: Case, wait: PendingCall, unseen: tuple[int, ...]) -> str:
    call, waiting = call_name("call", wait.seq, wait.group), case.cell.everyone(wait.waiting)
    if not unseen:
        return f"every member of {wait.group} left evidence, and {these(waiting)} {waits_wait(waiting)} in {call}"
    if wait.completed:
        return f"{these(wait.completed)} completed {call}: nobody was needed for it any more"
    if wait.deviating:
        did = "never issued" if wait.missing else "are behind, or disagree, in"
        return f"{these(wait.deviating)} left evidence, and {did} {call}"
    return f"nothing was heard of {these(unseen)}: too many for the {len(waiting)} that wait in {call}"


def _draft(case: Case, wait: PendingCall, unseen: tuple[int, ...]) -> Draft:
    cell, first = case.cell, wait.waiting[0]
    waiting = cell.everyone(wait.waiting)
    call = call_name(wait.collective(first).op, wait.seq, wait.group) + wait.barrier_note
    one = len(unseen) == 1
    came = (
        f"{'it is the one' if one else 'among them is one'} that never came, or that could no longer say so"
    )
    if is_of_a_log(cell.rank(first)):
        silent = "no line is of" if one else "no line is of any of"
        summary = f"{these(waiting).capitalize()} timed out in {call}, and {silent} {these(unseen)}: {came}."
    else:
        summary = f"Nothing was heard of {these(unseen)}, and {all_of(len(waiting))} that left evidence {waits_wait(waiting)} in {call}: {came}."
    it, has = ("it stands", "it has") if one else ("they stand", "they have")
    return Draft(
        cls="missing_rank",
        strength=_strength(len(unseen), len(waiting), whole=is_of_a_log(cell.rank(first))),
        summary=capitalized(summary),
        guilty_ranks=unseen,
        blocked_ranks=wait.waiting,
        where=Where(collective=wait.collective(first)),
        peers_at=wait.issued_at(cell, first),
        evidence={
            f"{named(cell, wait.waiting)} issued {call}, and it is not complete": wait.source(cell, first)
        },
        gaps=(
            f"no dump, stack, log line or end of {these(unseen)}: where {it} is not known",
            *_of_a_node(unseen),
        ),
        fix=f"Find the log, the process or the host of {these(unseen)}: {has} ended without a word, or {'stands' if one else 'stand'} elsewhere, as in work that only {'that rank' if one else 'those ranks'} did (a save, an evaluation, a download).",
    )


def _strength(unseen: int, heard: int, *, whole: bool) -> Strength:
    """That somebody is silent is a fact; which of several is to blame is not.

    `whole`: from one log, which has all ranks' lines, and not from files, of which somebody may have left one out.
    """
    if heard < CLEAR * unseen:
        return Strength.GUESS
    return Strength.LIKELY if whole and unseen == 1 else Strength.WEAK


def _of_a_node(unseen: tuple[int, ...]) -> Iterator[str]:
    """Ranks that one node would have: it may be its log that is missing."""
    for size in OF_A_NODE:
        if len(unseen) == size and unseen[0] % size == 0 and unseen[-1] - unseen[0] == size - 1:
            yield f"{these(unseen)} may be all of one node: then it is the node, or its log, that is missing"
            return


RULE = Rule(
    concludes=("missing_rank",),
    family="waiting",
    detected="Every member of a group that left any evidence waits in the same collective, and of fewer members nothing was heard: no dump, no stack, no line of a log, no end. That a rank must exist follows from the group's members, the world size, the sizes that a call gathers or scatters, or the other ranks' numbers.",
    fix="Find the log, the process or the host of the rank of which nothing was heard.",
    actions=("stop",),
    check=unseen_rank,
    needs=("flight_recorders",),
    explained_by=("missing_rank",),
    confused_with=("network_stall", "rank_killed"),
)

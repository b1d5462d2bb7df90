"""Ranks whose stacks stand at different places, where stacks are all that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.collected.camps import Camp, camps, said_of
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.phrases import are, capitalized
from nsadiag.evidence.records import Collective, Strength, Where

CLEAR = 3  # as many times more ranks at one place: those elsewhere are the exception
MOST_CITED = 4
FIX = "Find the condition that leads some ranks to one of these lines and the others to another, and let all ranks decide alike."
# What libraries ask of ranks, by the files of theirs on the stack.
ADVICE = (
    (
        re.compile(r"deepspeed/runtime/zero/(stage3|partition|parameter)"),
        "With ZeRO-3 every rank must run the same modules in the same order in every step. Of experts or branches that only some "
        "ranks use: deepspeed.utils.set_z3_leaf_modules(model, [<the class of the block>]), or let every rank run all of them.",
    ),
    (
        re.compile(r"torch/distributed/(fsdp|_composable/fsdp)/"),
        "With FSDP every rank must run the same units in the same order: let every rank run all of them, or wrap the block "
        "whose parts only some ranks use as one unit.",
    ),
)


def camps_of_stacks(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell) or not case.calls.empty or not case.thread_states:
        return
    found = camps(case)
    seen = [rank for camp in found for rank in case.cell.everyone(camp.ranks)]
    if len(found) < 2:
        yield Declined(
            f"{named(case.cell, found[0].ranks)} {are(seen)} all {found[0].words}", found[0].stand.source
        )
        return
    waiting, elsewhere = [c for c in found if c.waits], [c for c in found if not c.waits]
    calls = {camp.stand.call for camp in waiting}
    if len(calls) > 1:
        yield _in_different_calls(case, found, waiting)
    elif waiting and elsewhere and _are_few(case, elsewhere, waiting):
        yield _elsewhere(case, waiting, elsewhere)
    else:
        yield Declined(f"no side is the exception: {said_of(case, found)}", found[0].stand.source)


def _size(case: Case, side: list[Camp]) -> int:
    return sum(len(case.cell.everyone(camp.ranks)) for camp in side)


def _are_few(case: Case, few: list[Camp], many: list[Camp]) -> bool:
    # A line that may wait for peers in C shows no call: who stands there may wait as well.
    hidden = any(
        locations.MAY_WAIT_FOR_PEERS.search((c.stand.place and c.stand.place.code) or "") for c in few
    )
    return not hidden and _size(case, few) < _size(case, many)


def _in_different_calls(case: Case, found: tuple[Camp, ...], waiting: list[Camp]) -> Draft:
    """Ranks in different calls that all of them must issue together."""
    cell, most = case.cell, waiting[0]
    rest = [camp for camp in found if camp is not most]
    clear = _size(case, [most]) >= CLEAR * _size(case, rest)
    guilty = tuple(sorted(rank for camp in rest for rank in camp.ranks)) if clear else ()
    first = rest[0]
    everyone = tuple(sorted(rank for camp in found for rank in camp.ranks))
    verdict = (
        f"{named(cell, guilty)} {are(cell.everyone(guilty))} the exception"
        if guilty
        else "neither side is the exception, so no single rank is to blame"
    )
    return Draft(
        cls="collective_order_mismatch",
        outcome="hung",
        strength=Strength.WEAK,
        summary=f"The ranks wait in different calls, {said_of(case, found)}: neither can complete, and {verdict}.",
        guilty_ranks=guilty,
        blocked_ranks=tuple(r for r in everyone if r not in guilty),
        at=first.stand.place,
        where=Where(collective=_collective(first)),
        peers_at=most.stand.place,
        evidence=_cited(case, found),
        gaps=("stacks alone: of which group and number these calls are is not known",),
        fix=_advice(found),
        actions=("fix code",),
    )


def _elsewhere(case: Case, waiting: list[Camp], elsewhere: list[Camp]) -> Draft:
    """All that wait are in one call, and the others are in none."""
    cell = case.cell
    guilty = tuple(sorted(rank for camp in elsewhere for rank in camp.ranks))
    blocked = tuple(sorted(rank for camp in waiting for rank in camp.ranks))
    first = elsewhere[0].stand
    return Draft(
        cls="missing_rank",
        outcome="hung",
        strength=Strength.WEAK if _size(case, waiting) >= CLEAR * _size(case, elsewhere) else Strength.GUESS,
        summary=f"{capitalized(named(cell, guilty))} {are(cell.everyone(guilty))} elsewhere while the others wait: {said_of(case, (*waiting, *elsewhere))}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        at=first.place,
        where=Where(collective=_collective(waiting[0])),
        peers_at=waiting[0].stand.place,
        evidence=_cited(case, (*waiting, *elsewhere)),
        gaps=("stacks alone: which collective it is, and which rank issued what, is not known",),
        fix=f"Find what keeps {named(cell, guilty)} at the line shown, or what made {'it' if len(guilty) == 1 else 'them'} skip the call.",
    )


def _collective(camp: Camp) -> Collective | None:
    call = camp.stand.call
    return Collective(op=call, group="") if call and call != locations.BACKWARD else None


def _cited(case: Case, found: tuple[Camp, ...]) -> Claims:
    return {f"rank {camp.ranks[0]} is {camp.words}": camp.stand.source for camp in found[:MOST_CITED]}


def _advice(found: tuple[Camp, ...]) -> str:
    files = [file for camp in found for file in camp.stand.library]
    return next((said for pattern, said in ADVICE if any(map(pattern.search, files))), FIX)


RULE = Rule(
    concludes=("collective_order_mismatch", "missing_rank"),
    about="collected",
    family="waiting",
    detected="By stacks alone: ranks wait in different calls of torch.distributed, or a backward of some beside a call of others; or most wait in one call and the rest are in none. A side of a third or fewer is named; of two comparable sides nobody is.",
    fix=FIX,
    actions=("stop",),
    check=camps_of_stacks,
    needs=("stacks",),
    explained_by=("missing_rank", "collective_order_mismatch"),
    confused_with=("missing_rank", "data_divergent_control_flow", "network_stall"),
)

"""Ranks that never formed a process group: some never came, or used another address or world size."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import unlike_most
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import line_of, named
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.phrases import waits_wait
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.ring.blackbox import Kind, Phase

STORE_ERRORS = ("DistStoreError", "DistNetworkError")
MEETING = re.compile(r"world_size=(?P<size>\S+) at=(?P<at>\S+)")
# States of a rank that has not joined yet.
MAY_COME = ("sleep", "store", "socket", "pipe", "python", "unknown")
ASPECTS = {"size": "the world size", "at": "the address"}
NO_STORE = "all have come, but the address is not that of their store, or the store does not accept them"


@dataclass(frozen=True, kw_only=True)
class Joining:
    """One rank's call of init_process_group."""

    size: str
    at: str
    place: Place | None
    is_in: bool  # it has not returned, or returned with an error, or has met nobody since
    has_returned: bool = False  # from init_process_group: the first call was to meet the others
    source: str = "blackbox.bin"


def rendezvous_mismatch(case: Case) -> Iterator[Draft | Declined]:
    cell, joining = case.cell, joining_ranks(case)
    waiting = [r for r, j in joining.items() if j.is_in]
    timed_out = any(_gave_up(rank) for rank in cell.ranks)
    if not waiting or len(waiting) < len(joining) or not (is_still(cell) or timed_out):
        out = sorted(set(joining) - set(waiting))
        yield Declined(
            f"{named(cell, out)} returned from init_process_group"
            if out
            else "no rank was in init_process_group"
        )
        return
    for aspect, what in ASPECTS.items():
        said = {r: _said(j, aspect) for r, j in sorted(joining.items())}
        if len(set(said.values())) > 1:
            values = "; ".join(f"rank {r}: {v}" for r, v in [*said.items()][:6])
            odd = unlike_most(said, cell.weight).ranks
            yield _draft(case, joining, odd, f"they disagree on {what}: {values}")
            return
    world = max([cell.world_size, *(natural(j.size) or 0 for j in joining.values())])
    if any(j.has_returned for j in joining.values()):
        # Elsewhere there may be launchers that this one does not know of: what counts is more than all of theirs.
        world = max((natural(j.size) or 0 for r, j in joining.items() if _is_more(case, r, j)), default=0)
    # Ranks that ran have come, even if their files are missing.
    seen = {motion.rank for look in cell.watch.looks for motion in look.motions} | cell.present
    elsewhere = tuple(sorted({r.rank for r in cell.ranks} - set(joining)))
    absent = tuple(sorted(set(range(world)) - seen))
    if absent and all(_is_more(case, rank, j) for rank, j in joining.items()):
        started = cell.rank(min(joining)).meta.world_size
        why = f"their launcher started {started}: init_process_group expects other ranks than were launched"
        yield _draft(case, joining, tuple(sorted(joining)), why)
    elif absent:
        why = f"{named(cell, absent)} never came: {len(cell.present)} of {world} ranks left evidence"
        yield _draft(case, joining, absent, why)
    elif elsewhere and all(_may_come(case, rank) for rank in elsewhere):
        why = f"{named(cell, elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} not called it yet"
        yield _draft(case, joining, elsewhere, why)
    elif not elsewhere and all(_asks_for_the_store(case, rank) for rank in waiting):
        yield dataclasses.replace(
            _draft(case, joining, tuple(sorted(waiting)), NO_STORE), strength=Strength.LIKELY
        )


def _said(joining: Joining, aspect: str) -> str:
    """A store that has answered may have several names; a file is what its path says."""
    value = str(getattr(joining, aspect))
    return "" if aspect == "at" and joining.has_returned and not value.startswith("file://") else value


def _is_more(case: Case, rank: int, joining: Joining) -> bool:
    """Whether it expects more ranks than its launcher has started or will."""
    return (natural(joining.size) or 0) > case.cell.rank(rank).meta.world_size > 0


def joining_ranks(case: Case) -> dict[int, Joining]:
    """By rank, its last call of init_process_group."""
    return {rank.rank: j for rank in case.cell.ranks if (j := _recorded(case, rank) or _seen(case, rank))}


def _recorded(case: Case, rank: RankEvidence) -> Joining | None:
    mine = case.events_of(rank.rank, Kind.PROCESS_GROUP)
    mine = mine[mine.name == "init_process_group"]
    begun = mine[mine.phase == Phase.BEGIN]
    if begun.empty:
        return None
    told = MEETING.search(str(begun.iloc[-1].detail))
    is_inside = mine.iloc[-1].phase == Phase.BEGIN or _stands_in_it(case, rank.rank) or _gave_up(rank)
    has_returned = not is_inside and _met_nobody(case, rank.rank)
    return Joining(
        size=told["size"] if told else "?",
        at=told["at"] if told else "?",
        place=locations.of_text(str(begun.iloc[-1].site)),
        is_in=is_inside or has_returned,
        has_returned=has_returned,
    )


def _met_nobody(case: Case, rank: int) -> bool:
    """Whether it stands in its first call: NCCL's init_process_group returns without asking for the others."""
    state, asked, calls = case.thread_states.get(rank), case.asked, case.calls
    if state is None or state.doing != "collective":
        return False
    over = asked[(asked["rank"] == rank) & asked["end_s"].notna()]
    return over.empty and calls[calls["rank"] == rank].empty


def _seen(case: Case, rank: RankEvidence) -> Joining | None:
    """The call of a rank that was not recorded, by its stack."""
    told, state = MEETING.search(rank.meta.meeting), case.thread_states.get(rank.rank)
    if told is None or state is None or not _stands_in_it(case, rank.rank):
        return None
    return Joining(size=told["size"], at=told["at"], place=state.place, is_in=True, source="meta.json")


def _gave_up(rank: RankEvidence) -> bool:
    """Whether its init_process_group ended by the store's timeout."""
    return any(
        error.type in STORE_ERRORS and any(frame.function == "init_process_group" for frame in error.frames)
        for error in (*([rank.exception] if rank.exception else []), *rank.raised)
    )


def _stands_in_it(case: Case, rank: int) -> bool:
    """Whether it was in the call when it was captured."""
    state = case.thread_states.get(rank)
    return state is not None and state.doing == "rendezvous" and "init_process_group" in state.inner


def _may_come(case: Case, rank: int) -> bool:
    """Whether it may still join; in other states (a lock, for example) it has a cause of its own."""
    state = case.thread_states.get(rank)
    return state is not None and state.doing in MAY_COME


def _asks_for_the_store(case: Case, rank: int) -> bool:
    """Whether it is connecting to the store; everything later needs a store that has answered."""
    return _stands_in_it(case, rank) and "_create_c10d_store" in case.thread_states[rank].inner


def _stands(joining: Joining) -> str:
    if joining.has_returned:
        return "stands in the first call after it, of which its flight recorder knows nothing"
    return "has not returned"


def _draft(case: Case, joining: dict[int, Joining], guilty: tuple[int, ...], why: str) -> Draft:
    cell = case.cell
    blocked = tuple(r for r in sorted(joining) if r not in guilty)
    first, peer = guilty[0], joining[min(blocked or joining)]
    evidence = {
        f"rank {r} began init_process_group with world_size={j.size} at={j.at}, and {_stands(j)}": f"{cell.rank(r).source}/{j.source}"
        for r, j in sorted(joining.items())[:6]
    }
    for rank in guilty[:4]:
        if rank not in joining and rank in case.thread_states:
            source = f"{case.thread_states[rank].source}/py_spy.json"
            evidence[f"rank {rank} is elsewhere{case.thread_states[rank].in_both_snapshots}"] = source
    met = len({(j.size, j.at) for j in joining.values()}) == 1
    whom = f" for {peer.size} ranks at {peer.at}" if met else ""
    waits = waits_wait(cell.everyone(joining))
    own = joining[first].place if first in joining else None
    where = (
        "in their first call after init_process_group"
        if any(j.has_returned for j in joining.values())
        else "in init_process_group"
    )
    return Draft(
        outcome="hung" if is_still(cell) else "crashed",
        strength=Strength.STRONG,
        summary=f"{named(cell, joining).capitalize()} {waits} {where}{whom}, and {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        at=own or line_of(case, [first]) or peer.place,
        peers_at=peer.place,
        evidence=evidence,
        gaps=tuple(
            f"rank {r} left no evidence: it was not started here, or not as a rank"
            for r in guilty
            if r not in {rank.rank for rank in cell.ranks}
        ),
    )


RULE = Rule(
    means={
        "rendezvous_mismatch": "The ranks never formed a process group: some never came, or had another world size or address."
    },
    family="waiting",
    detected="No rank returned from init_process_group, or all stand in their first call after it, which is on no record: NCCL asks for the others only there. Some ranks never came, have not called it yet, expect another world size, or use another address; or all have come, and each is still connecting to the store. `where` is the line at which a rank that has not called it is.",
    fix="Start as many processes as the world size says, with the same MASTER_ADDR and MASTER_PORT (torchrun sets both) on which nothing else listens, and let every rank call init_process_group before it waits for anything else.",
    check=rendezvous_mismatch,
    needs=("black_boxes",),
    confused_with=("process_group_mismatch", "rank_exited_early", "rank_exception"),
)

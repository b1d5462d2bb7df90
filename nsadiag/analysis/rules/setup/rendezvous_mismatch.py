"""Ranks that never formed a process group: some never came, or used another address or world size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.groups import shown
from nsadiag.analysis.outliers import MAJORITY, UNLIKE_FIRST, Behaviour, outliers
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.reasons import these
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase

STORE_ERRORS = ("DistStoreError", "DistNetworkError")
MEETING = re.compile(r"world_size=(?P<size>\S+) at=(?P<at>\S+)")


# States of a rank that has not joined yet; in other states (a lock, for example) it has a cause of its own.
MAY_COME = ("sleep", "store", "socket", "pipe", "python", "unknown")


@dataclass(frozen=True, kw_only=True)
class Joining:
    """One rank's call of init_process_group."""

    rank: int
    size: str
    at: str
    place: Place | None
    is_in: bool  # it has not returned, or returned with an error
    source: str = "blackbox.bin"


def rendezvous_mismatch(case: Case) -> Iterator[Draft | Declined]:
    joining = joining_ranks(case)
    waiting = tuple(sorted(r for r, j in joining.items() if j.is_in))
    timed_out = any(_gave_up(rank) for rank in case.cell.ranks)
    if not waiting or len(waiting) < len(joining) or not (is_still(case.cell) or timed_out):
        out = tuple(sorted(set(joining) - set(waiting)))
        yield Declined(
            f"{named(case.cell, out)} returned from init_process_group"
            if out
            else f"none of {len(case.cell.ranks)} ranks was in init_process_group"
        )
        return
    absent = sorted(set(range(_world(case.cell, joining))) - case.cell.present - _looked_at(case.cell))
    elsewhere = tuple(sorted({r.rank for r in case.cell.ranks} - set(joining)))
    for aspect in ("size", "at"):
        said = {r: str(getattr(j, aspect)) for r, j in joining.items()}
        if len(set(said.values())) > 1:
            # Rank 0 hosts the store.
            behaviour = {r: Behaviour(now=v, weight=case.cell.weight(r)) for r, v in said.items()}
            odd = outliers(behaviour, (MAJORITY, UNLIKE_FIRST))
            yield _finding(case, joining, odd.ranks, _differing(aspect, said))
            return
    if absent:
        why = f"{named(case.cell, absent)} never came: of {_world(case.cell, joining)} ranks {len(case.cell.present)} were seen"
        yield _finding(case, joining, tuple(absent), why)
    elif elsewhere and all(
        r in case.thread_states and case.thread_states[r].doing in MAY_COME for r in elsewhere
    ):
        why = f"rank {shown(case.cell.everyone(elsewhere))} has not called it yet"
        yield _finding(case, joining, elsewhere, why)
    elif not elsewhere and all(_asks_for_the_store(case, rank) for rank in waiting):
        why = "all have come, but the address is not that of their store, or the store does not accept them"
        yield _finding(case, joining, waiting, why, strength=Strength.LIKELY)


def joining_ranks(case: Case) -> dict[int, Joining]:
    """By rank, its last call of init_process_group."""
    return {rank.rank: j for rank in case.cell.ranks if (j := _joining(case, rank))}


def _looked_at(cell: CellEvidence) -> set[int]:
    """Ranks that ran, even if their files are missing."""
    return {motion.rank for look in cell.watch.looks for motion in look.motions}


def _world(cell: CellEvidence, joining: dict[int, Joining]) -> int:
    return max([cell.world_size, *(int(j.size) for j in joining.values() if j.size.isdigit())])


def _joining(case: Case, rank: RankEvidence) -> Joining | None:
    events = case.events
    mine = events[(events["rank"] == rank.rank) & (events.kind == Kind.PROCESS_GROUP)]
    mine = mine[mine.name == "init_process_group"]
    begun = mine[mine.phase == Phase.BEGIN]
    if begun.empty:
        return _seen_joining(case, rank)
    last = begun.iloc[-1]
    told = MEETING.search(str(last.detail))
    return Joining(
        rank=rank.rank,
        size=told["size"] if told else "?",
        at=told["at"] if told else "?",
        place=locations.of_text(str(last.site)),
        is_in=mine.iloc[-1].phase == Phase.BEGIN or _stands_in_it(case, rank.rank) or _gave_up(rank),
    )


def _seen_joining(case: Case, rank: RankEvidence) -> Joining | None:
    """The call of a rank that was not recorded, by its stack."""
    told = MEETING.search(rank.meta.meeting)
    at = case.thread_states.get(rank.rank)
    if told is None or at is None or not _stands_in_it(case, rank.rank):
        return None
    return Joining(
        rank=rank.rank, size=told["size"], at=told["at"], place=at.place, is_in=True, source="meta.json"
    )


def _gave_up(rank: RankEvidence) -> bool:
    """Whether its init_process_group ended by the store's timeout."""
    return any(
        error.type in STORE_ERRORS and any(frame.function == "init_process_group" for frame in error.frames)
        for error in (*([rank.exception] if rank.exception else []), *rank.raised)
    )


def _stands_in_it(case: Case, rank: int) -> bool:
    """Whether it was in the call when it was captured."""
    at = case.thread_states.get(rank)
    return at is not None and at.doing == "rendezvous" and "init_process_group" in at.inner


def _asks_for_the_store(case: Case, rank: int) -> bool:
    """Whether it is connecting to the store; everything later needs a store that has answered."""
    return _stands_in_it(case, rank) and "_create_c10d_store" in case.thread_states[rank].inner


def _differing(aspect: str, said: dict[int, str]) -> str:
    what = {"size": "the world size", "at": "the address"}[aspect]
    return f"they disagree on {what}: " + "; ".join(f"rank {r}: {v}" for r, v in sorted(said.items())[:6])


def _finding(
    case: Case,
    joining: dict[int, Joining],
    guilty: tuple[int, ...],
    why: str,
    *,
    strength: Strength = Strength.STRONG,
) -> Draft:
    waiting = [r for r in sorted(joining) if r not in guilty] or sorted(joining)
    first, peer = guilty[0], joining[waiting[0]]
    own = joining[first].place if first in joining else None
    if own is None and first in case.thread_states:
        own = case.thread_states[first].place
    crashed = not is_still(case.cell)
    met = len({(j.size, j.at) for j in joining.values()}) == 1
    whom = f" for {peer.size} ranks at {peer.at}" if met else ""
    return Draft(
        outcome="crashed" if crashed else "hung",
        strength=strength,
        summary=f"{these(case.cell.everyone(joining)).capitalize()} {'wait' if len(case.cell.everyone(joining)) > 1 else 'waits'} in init_process_group{whom}, and {why}.",
        guilty_ranks=guilty,
        blocked_ranks=tuple(r for r in sorted(joining) if r not in guilty),
        where=Where().at(own or peer.place),
        peers_at=peer.place,
        evidence={
            **{
                f"rank {r} began init_process_group with world_size={j.size} at={j.at}, and has not returned": f"{case.cell.rank(r).source}/{j.source}"
                for r, j in sorted(joining.items())[:6]
            },
            **{
                f"rank {r} is elsewhere, in both snapshots": f"{case.thread_states[r].source}/py_spy.json"
                for r in guilty[:4]
                if r not in joining and r in case.thread_states
            },
        },
        gaps=tuple(
            f"rank {r} left no evidence: it was not started here, or not as a rank"
            for r in guilty
            if r not in {x.rank for x in case.cell.ranks}
        ),
        fix="Start as many processes as the world size says, with the same MASTER_ADDR and MASTER_PORT (torchrun sets both) on which nothing else listens, and let every rank call init_process_group before it waits for anything else.",
    )


RULE = Rule(
    name="rendezvous_mismatch",
    means={
        "rendezvous_mismatch": "The ranks never formed a process group: some never came, or had another world size or address."
    },
    family="waiting",
    detected="No rank returned from init_process_group. Some ranks never came, have not called it yet (`where` is then where they are), expect another world size, or use another address; or all have come, and each is still connecting to the store",
    fix="Start exactly world_size ranks, with the same address and port.",
    check=rendezvous_mismatch,
    needs=("black_boxes",),
    confused_with=("process_group_mismatch", "rank_exited_early", "rank_exception"),
)

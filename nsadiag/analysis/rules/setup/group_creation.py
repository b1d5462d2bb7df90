"""Process groups that only their members create: which ranks wait there for which, and cycles of such waits."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import minority
from nsadiag.analysis.relations.wait_graph import Edge, Graph
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.records import Place
from nsadiag.evidence.table import Table


@dataclass(frozen=True, kw_only=True)
class Creation:
    """The group creation that a rank is in."""

    rank: int
    ranks: str  # as passed: "0,1"
    absent: tuple[int, ...]  # members that have not called it
    place: Place | None


def members_of(ranks: str) -> set[int]:
    """The members in `"0,1"`; empty for "all" or several groups."""
    numbers = [natural(word) for word in ranks.split(",")]
    return set() if None in numbers else {number for number in numbers if number is not None}


def local_creations(case: Case) -> dict[int, Creation]:
    """By rank, the unfinished creation (use_local_synchronization) that its main thread is in."""
    created = case.created[case.created.local.astype(bool)]
    found = {}
    unfinished = created[created.end_s.isna()]
    # With two in different threads, the one that blocks the main thread is unknown.
    for row in unfinished[unfinished.groupby("rank")["rank"].transform("size") == 1].to_dict():
        rank, asked = int(row["rank"]), members_of(str(row["ranks"]))
        at = case.thread_states.get(rank)
        if at is None or at.doing != "rendezvous" or rank not in asked:
            continue
        absent = asked - _came(created, asked, float(row["begin_s"])) - {rank}
        found[rank] = Creation(
            rank=rank,
            ranks=str(row["ranks"]),
            absent=tuple(sorted(absent)),
            place=locations.of_text(str(row["place"])),
        )
    return found


def _came(created: Table, members: set[int], since_s: float) -> set[int]:
    """The ranks that are in the creation of that group, or left it after `since_s`."""
    same = created[[members_of(str(ranks)) == members for ranks in created.ranks]]
    return {int(r) for r in same[same.end_s.isna() | (same.end_s > since_s)]["rank"]}


def creation_cycles(created: dict[int, Creation]) -> list[tuple[int, ...]]:
    """Cycles of ranks that wait for each other, directly or indirectly."""
    edges = tuple(
        Edge(waiter=rank, waited_for=peer, what=f"new_group {one.ranks}", source=f"ranks/{rank:05d}")
        for rank, one in created.items()
        for peer in one.absent
    )
    return list(Graph(edges=edges).cycles())


def at_odds(created: dict[int, Creation], cycle: tuple[int, ...]) -> tuple[int, ...]:
    """The members of the cycle that create another group than most; the whole cycle if there is no majority of two."""
    groups = {rank: frozenset(members_of(one.ranks)) for rank, one in created.items()}
    # Ranks beside the cycle show which of the groups is the usual one.
    beside = {rank: members for rank, members in groups.items() if members in {groups[r] for r in cycle}}
    few = minority(beside) if len(set(beside.values())) == 2 else ()
    return tuple(r for r in cycle if r in few) or cycle

"""Ranks that do the same part of a step's work, by what they send to each other: stages of a pipeline do different ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.replication import FEW

Sent = tuple[tuple[str, int | None], ...]  # direction and peer of each transfer of a step, in their order


def same_parts(case: Case) -> tuple[frozenset[int], ...]:
    """The ranks, in groups that may be compared: alike in the directions of their transfers, and so are their peers.

    In a ring all ranks are alike, in a chain none is like another one, and chains side by side are alike stage by stage.
    Where nothing is sent, all are.
    """
    sent = _sent(case)
    colour: dict[int | None, Hashable] = dict.fromkeys(sent, 0)
    found = 1
    while True:
        told = {rank: (colour[rank], *((d, colour.get(p)) for d, p in sent[rank])) for rank in sent}
        numbers = {each: number for number, each in enumerate(dict.fromkeys(told.values()))}
        colour = {rank: numbers[each] for rank, each in told.items()}
        if len(numbers) <= found:
            break
        found = len(numbers)
    groups = defaultdict[Hashable, set[int]](set)
    for rank in sent:
        groups[colour[rank]].add(rank)
    return tuple(map(frozenset, groups.values()))


def _sent(case: Case) -> dict[int, Sent]:
    """By rank, the transfers of most of its steps; empty where most have none."""
    steps = defaultdict[int, dict[int, list[tuple[str, int | None]]]](dict)
    for each in case.transfers:
        if not each.op.endswith(".wait") and each.elements > FEW:
            steps[each.rank].setdefault(each.step, []).append((each.direction, each.peer))
    made = {rank: case.steps[case.steps["rank"] == rank].step.nunique() for rank in case.cell.met}
    found: dict[int, Sent] = {}
    for rank in sorted(case.cell.met):
        usual = Counter(map(tuple, steps[rank].values())).most_common(1)
        found[rank] = usual[0][0] if usual and 2 * len(steps[rank]) >= made[rank] else ()
    return found

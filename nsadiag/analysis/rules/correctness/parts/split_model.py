"""A model that is split over the ranks: which parameters are each rank's own, and which all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.invariants.operations import couples, steps_of
from nsadiag.analysis.relations.invariants.tensors import (
    Copies,
    inputs_differ,
    inputs_of,
    is_constant,
    parameters_of,
)
from nsadiag.evidence.documents.operations import Call, Operation


@dataclass(frozen=True, kw_only=True)
class Split:
    """Parameters that differ from the start or that some ranks alone have, and those that all ranks share."""

    own: list[str]
    shared: list[Copies]


def split_of(case: Case) -> Split:
    """A parameter that starts as zeros or ones is classed with its neighbours in the model, or by what becomes of what its
    module makes; a size that no shared parameter has belongs to a shard.
    """
    parameters = parameters_of(case)
    own = [copies.name for copies in parameters if not copies.held] or list(_of_some(case))
    drawn = [copies for copies in parameters if copies.held and not is_constant(copies.first)]
    sizes = {size for copies in drawn for size in copies.first.shape}
    names = own, [copies.name for copies in drawn]
    of_parts = _of_parts(case, parameters)
    shared = [
        copies
        for copies in parameters
        if copies in drawn
        or (copies.held and sizes.issuperset(copies.first.shape) and _is_beside_shared(copies.name, *names))
        or copies.name in of_parts
    ]
    return Split(own=own, shared=shared)


def _is_beside_shared(name: str, own: list[str], shared: list[str]) -> bool:
    """Whether the smallest enclosing module with random parameters has shared ones, and none of a rank's own beside it."""
    module = name.rpartition(".")[0]
    if any(each.rpartition(".")[0] == module for each in own):
        return False
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        around = "".join(f"{part}." for part in parts[:depth])
        if any(each.startswith(around) for each in shared):
            return True
        if any(each.startswith(around) for each in own):
            return False
    return False


def _of_some(case: Case) -> Iterator[str]:
    """Parameters that some ranks alone have, as experts, where all ranks are given the same and sum what they make of it.

    Stages of a pipeline are given different things: what is equal there may be so by their seed alone.
    """
    if not inputs_of(case) or inputs_differ(case) or not _sums_over_all(case):
        return
    held = {
        rank: {value.name for o in rows for value in o.values}
        for rank, rows in steps_of(case)[0].of("step").items()
    }
    everywhere = set.intersection(*held.values())
    yield from sorted(set.union(*held.values()) - everywhere)


def _sums_over_all(case: Case) -> bool:
    """Whether every rank sums activations over all ranks in the forwards of every step."""
    everyone = case.cell.met

    def sums(rank: int, o: Operation) -> bool:
        members = case.groups.members(case.groups.label(rank, o.group))
        return couples(o) and o.inside == "forward" and o.reduces == "SUM" and members == everyone

    rows = [(rank, ops) for step in steps_of(case) for rank, ops in step.ranks.items()]
    return bool(rows) and all(any(sums(rank, o) for o in ops) for rank, ops in rows)


def _of_parts(case: Case, parameters: list[Copies]) -> set[str]:
    """Parameters of modules that run on each rank's part of a sequence: what they make is gathered whole, and the forward sums later.

    Where parts of the features are gathered, a shard behind them is as wide as all of these together.
    """
    first = steps_of(case)[0]
    if not parameters or not all(map(_sums_behind_a_gather, first.ranks.values())):
        return set()
    gathered = [_gathered(calls) for calls in first.calls.values()]
    modules = set.intersection(*gathered) if gathered else set()
    own = [copies for copies in parameters if not copies.held]
    widths = {size for copies in own for size in copies.first.shape}
    shards = {copies.name.rpartition(".")[0] for copies in own}
    return {
        copies.name
        for copies in parameters
        if copies.held
        and copies.first.shape
        and copies.name.rpartition(".")[0] in modules - shards
        and (size := copies.first.shape[-1]) in widths
        and size * len(first.ranks) not in widths
    }


def _sums_behind_a_gather(operations: tuple[Operation, ...]) -> bool:
    """Whether the forward gathers activations and adds some up later: features of whole towers are gathered last."""
    inside = [o for o in operations if couples(o) and o.inside == "forward"]
    gathers = [n for n, o in enumerate(inside) if "gather" in o.name]
    return bool(gathers) and any(map(_sums, inside[gathers[0] :]))


def _sums(operation: Operation) -> bool:
    """Whether it adds activations up, on all ranks or part by part."""
    return operation.reduces == "SUM" or operation.name.startswith("reduce_scatter")


def _gathered(calls: tuple[Call, ...]) -> set[str]:
    """Modules of which a collective gathers what they make."""
    given = {v.exact for call in calls if call.exchanges and "gather" in call.name for v in call.given}
    return {
        call.name
        for call in calls
        if not call.exchanges and call.held and call.made[:1] and call.made[0].exact in given
    }

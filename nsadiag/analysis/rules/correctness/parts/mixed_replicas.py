"""Gradients averaged between ranks that hold different parts of a model, while the replicas of each part drift apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import Members
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import LEAST, reduces_gradients, source, steps_of
from nsadiag.analysis.relations.invariants.tensors import Copies, is_constant, looks_of, parameters_of, sums
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Where
from nsadiag.evidence.spans import listed


def mixed_replicas(case: Case) -> Iterator[Draft | Declined]:
    """Only where the user's code reduces gradients over groups, and every rank has a replica that began equal in all parameters."""
    drawn = [copies for copies in parameters_of(case) if not is_constant(copies.first)]
    replicas = _replicas(drawn)
    reductions = _reductions(case)
    groups = {case.groups.members(case.groups.label(rank, o.group)) for rank, o in reductions}
    if len(looks_of(case)) <= LEAST or len(replicas) < 2 or min(map(len, replicas)) < 2 or not groups:
        if reductions:
            yield Declined(
                f"gradients are reduced over {count(len(groups), 'group')}, of a model in {count(len(replicas), 'part')}",
                source(case),
            )
        return
    crossing = [group for group in groups if any(len(group & each) > 1 for each in replicas)]
    carried = {role.partition(" ")[2] for _, o in reductions for role in o.roles}
    known = [copies for copies in drawn if copies.name in carried or "" in carried]
    drifted = [copies for copies in known if all(_parts(copies, each) for each in replicas)]
    if crossing or not drifted or min(map(len, groups)) < 2:
        yield Declined(
            f"gradients are reduced over {count(len(groups), 'group')}, of which {len(crossing) or 'none'} joins replicas of one part; {len(drifted) or 'none'} of {count(len(known), 'parameter')} drift apart",
            source(case),
        )
        return
    first = drifted[0]
    step, begun = first.at[0]
    shown = "; ".join(listed(sorted(group)) for group in sorted(groups, key=min))
    parts = "; ".join(listed(sorted(each)) for each in sorted(replicas, key=min))
    yield silent_error(
        case,
        f"Gradients are averaged between ranks that hold different parts of the model: over ranks {shown}, while all parameters begin equal on ranks {parts}, and {first.name} drifts apart there.",
        sums(first.name, step, begun),
        reductions[0][1].place,
        Where(parameter=first.name, step=step, phase="backward"),
    )


def _replicas(drawn: list[Copies]) -> set[Members]:
    """Ranks whose parameters are all equal at first."""
    begun: dict[int, list[int]] = defaultdict(list)
    for copies in drawn:
        for rank, value in copies.at[0][1].items():
            begun[rank].append(value.exact)
    found: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for rank, exact in begun.items():
        found[tuple(exact)].add(rank)
    return {frozenset(ranks) for ranks in found.values()}


def _reductions(case: Case) -> list[tuple[int, Operation]]:
    return [
        (rank, o)
        for step in steps_of(case)
        for rank, found in step.of("collective").items()
        for o in found
        if reduces_gradients(o)
    ]


def _parts(copies: Copies, ranks: Members) -> bool:
    """Whether the replicas differ at every step but the first."""
    return all(len({values[rank].exact for rank in ranks}) > 1 for _, values in copies.at[1:])


RULE = Rule(
    family="correctness",
    detected="(`--probes light,invariants`) Gradients are reduced over groups whose ranks never had equal parameters, while ranks that began equal are in different groups and drift apart",
    fix="Build the data-parallel groups of the ranks that hold the same part of the model.",
    check=mixed_replicas,
    keeps="copies",
    explained_by=("nonfinite", "control_mismatch"),
)

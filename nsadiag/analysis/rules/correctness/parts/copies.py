"""Copies of one parameter that nothing keeps equal, in models of which each rank holds a part, or updates one."""

from __future__ import annotations

from collections import Counter, defaultdict

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import Members
from nsadiag.analysis.relations.invariants.operations import (
    LEAST,
    MOST_OPERATIONS,
    Operations,
    Step,
    noted,
    one_optimizer,
    reduced_names,
    reduces_gradients,
    steps_of,
)
from nsadiag.analysis.relations.invariants.tensors import (
    Copies,
    Values,
    equal,
    is_constant,
    looks_of,
    parameters_of,
    sums,
)
from nsadiag.analysis.rules.correctness.expectation import Expectation, Violation, rules_of
from nsadiag.analysis.rules.drafts import named
from nsadiag.evidence.documents.operations import Call, Checksum, Operation
from nsadiag.evidence.phrases import are, count, was
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import by_rank, listed, shortened

Series = list[Checksum]  # of one parameter on one rank, step by step
GRADIENT = "gradient "


# -- gradients averaged between ranks that hold different parts ------------------------------------


def _mixed(case: Case) -> Violation | str | None:
    """Only where the user's code reduces gradients over groups, and every rank has a replica that began equal in all parameters."""
    drawn = [copies for copies in parameters_of(case) if not is_constant(copies.first)]
    replicas = _replicas(drawn)
    reductions = [
        (rank, o)
        for step in steps_of(case)
        for rank, found in step.of("collective").items()
        for o in found
        if reduces_gradients(o)
    ]
    groups = {case.groups.members(case.groups.label(rank, o.group)) for rank, o in reductions}
    alone = len(replicas) < 2 or min(map(len, replicas)) < 2
    if len(looks_of(case)) <= LEAST or alone or not groups:
        return f"gradients are reduced over {count(len(groups), 'group')}" if groups else None
    crossing = any(len(group & each) > 1 for group in groups for each in replicas)
    carried = {role.partition(" ")[2] for _, o in reductions for role in o.roles}
    known = [copies for copies in drawn if copies.name in carried or "" in carried]
    drifted = [copies for copies in known if all(_parts(copies, each) for each in replicas)]
    if crossing or not drifted or min(map(len, groups)) < 2:
        return "groups over which gradients are reduced join replicas of one part"
    first = drifted[0]
    step, begun = first.at[0]
    return Violation(
        at=reductions[0][1].place,
        where=Where(parameter=first.name, step=step, phase="backward"),
        words={
            "over": "; ".join(listed(sorted(group)) for group in sorted(groups, key=min)),
            "parts": "; ".join(listed(sorted(each)) for each in sorted(replicas, key=min)),
            "name": first.name,
            "sums": sums(first.name, step, begun),
        },
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


def _parts(copies: Copies, ranks: Members) -> bool:
    """Whether the replicas differ at every step but the first."""
    return all(len({values[rank].exact for rank in ranks}) > 1 for _, values in copies.at[1:])


# -- tied weights of stages ------------------------------------------------------------------------


def _untied(case: Case) -> Violation | str | None:
    """Only for a weight that one stage uses by its module, and another one without it, as an output layer uses an embedding."""
    steps = steps_of(case)
    flows = _flows(steps[0]) if len(steps) > LEAST else {}
    if not flows or not _is_pipeline(flows):
        return None
    begun = _weights(steps[0])
    tied = [name for name, values in begun.items() if _is_tied(name, values, flows)]
    untied = [name for name in sorted(tied) if all(_differs(step, name) for step in steps[1:])]
    if not untied or all(equal(values) for values in begun.values()):
        return f"{len(tied)} weights are used by a module on one stage and without it on another"
    name = untied[0]
    values = begun[name]
    called = [rank for rank in sorted(values) if _calls(flows[rank], name)]
    others = [rank for rank in sorted(values) if rank not in called]
    since = steps[1].number
    return Violation(
        at=steps[0].on_first("step")[0].place,
        where=Where(parameter=name, step=steps[0].number, phase="backward"),
        words={
            "name": name,
            "ranks": named(case.cell, values),
            "called": named(case.cell, called),
            "others": named(case.cell, others),
            "since": since,
            "sums": sums(name, since, _weights(steps[1])[name]),
        },
        ranks=values,
    )


def _flows(step: Step) -> dict[int, list[Call]]:
    """By rank, calls of modules in the step; empty where a rank's are not known."""
    found = {rank: [call for call in calls if not call.exchanges] for rank, calls in step.calls.items()}
    return found if all(found.values()) else {}


def _is_pipeline(flows: dict[int, list[Call]]) -> bool:
    """Whether what a rank's outermost module makes is given to another rank's."""
    made = {(rank, value.exact) for rank, calls in flows.items() for value in calls[0].made if value.exact}
    given = {(rank, value.exact) for rank, calls in flows.items() for value in calls[0].given}
    return any(one != other and made_ == given_ for one, made_ in made for other, given_ in given)


def _weights(step: Step) -> dict[str, Values]:
    """Parameters of optimizers, by name and rank."""
    found: dict[str, Values] = {}
    for rank, rows in step.of("step").items():
        for value in (v for o in rows for v in o.values):
            found.setdefault(value.name, {})[rank] = value
    return found


def _is_tied(name: str, values: Values, flows: dict[int, list[Call]]) -> bool:
    by_module = {_calls(flows[rank], name) for rank in values}
    return len(by_module) == 2 and equal(values) and not is_constant(next(iter(values.values())))


def _calls(calls: list[Call], parameter: str) -> bool:
    """Whether the module that holds the parameter is called."""
    return any(call.name == parameter.rpartition(".")[0] for call in calls)


def _differs(step: Step, name: str) -> bool:
    values = _weights(step).get(name)
    return values is not None and not equal(values)


# -- parameters that one rank updates for all ------------------------------------------------------


def _unsent(case: Case) -> Violation | str | None:
    """Only where each rank's optimizer holds a share of one model, and gradients are reduced on all ranks."""
    steps = steps_of(case)
    owner = _owners(case) if len(steps) > LEAST and one_optimizer(steps) else {}
    sent = Counter(
        (role.partition(" ")[2], o.place)
        for rank in case.cell.ranks
        for _, o in noted(rank, "collective")
        for role in o.roles
        if role.startswith("parameter ")
    )
    if not owner or not sent:
        return None
    known = {name for name, _ in sent}
    unsent = [name for name in sorted(owner) if name in reduced_names(case) and name not in known]
    kept = {name: stale for name in unsent if (stale := _stale(case, name, owner[name]))}
    if not kept:
        return f"the updates of {count(len(owner), 'parameter')}, each made by one rank, arrive on all others"
    first, stale = next(iter(kept.items()))
    ends = {rank: series[-1].total for rank, series in {**stale, **_series(case, first, "step")}.items()}
    return Violation(
        at=Counter(place for _, place in sent.elements()).most_common(1)[0][0],
        where=Where(parameter=first, step=steps[0].number, phase="optimizer"),
        words={
            "names": shortened(list(kept), 1),
            "are": are(list(kept)),
            "owner": named(case.cell, (owner[first],)),
            "others": named(case.cell, stale),
            "name": first,
            "sent": len(known),
            "last": steps[-1].number,
            "ends": by_rank(ends, ".8g"),
        },
    )


def _owners(case: Case) -> dict[str, int]:
    """The rank whose optimizer holds each parameter; empty where several hold one."""
    held: dict[str, int] = {}
    for rank, operations in steps_of(case)[0].ranks.items():
        names = [value.name for o in operations if o.kind == "step" for value in o.values]
        if not names or not held.keys().isdisjoint(names):
            return {}
        held |= dict.fromkeys(names, rank)
    return held


def _stale(case: Case, name: str, owner: int) -> dict[int, Series]:
    """By rank, its copies where they never change; empty where the owner's do not either, or another's do."""
    mine = _series(case, name, "step").get(owner, [])
    theirs = {rank: found for rank, found in _series(case, name, "beside").items() if rank != owner}
    still = all(len({value.exact for value in found}) == 1 for found in theirs.values())
    return theirs if still and len({value.exact for value in mine}) > LEAST else {}


def _series(case: Case, name: str, kind: str) -> dict[int, Series]:
    """By rank, its copies in an optimizer (`step`), or in a model whose optimizer is another rank's (`beside`)."""
    found: dict[int, Series] = {}
    for step in steps_of(case):
        for rank, rows in step.of(kind).items():
            for value in (v for o in rows for v in o.values):
                if (value.name.partition(".")[2] if kind == "beside" else value.name) == name:
                    found.setdefault(rank, []).append(value)
    return found


# -- gradients of earlier backwards ----------------------------------------------------------------


def _earlier_backwards(case: Case) -> Violation | str | None:
    """Only where gradients are accumulated, and the last backward reduces just those which it changes."""
    steps = steps_of(case)
    rows = [ops for step in steps for ops in step.ranks.values() if any(o.kind == "made" for o in ops)]
    missed = _missed(rows[0]) if len(rows) > LEAST and one_optimizer(steps) else frozenset()
    if not missed or any(_missed(ops) != missed for ops in rows) or len(looks_of(case)) <= LEAST:
        return None
    left = [copies for copies in parameters_of(case) if copies.name in missed]
    reduced = [copies for copies in parameters_of(case) if copies.name not in missed and copies.moves()]
    drifted = [c for c in left if c.has_parted and c.held > 0 and not is_constant(c.first)]
    if not drifted or not reduced or not all(copies.is_kept for copies in reduced):
        return f"the last backward does not reduce {count(len(left), 'gradient')}, which stay equal, as others do not"
    first = drifted[0]
    step, values = first.parted_at
    names = [copies.name for copies in left]
    return Violation(
        at=next(o for o in rows[0] if _is_within(o)).place,
        where=Where(parameter=first.name, step=max(step - 1, 0), phase="backward"),
        words={
            "names": shortened(names, 1),
            "was": was(names),
            "name": first.name,
            "step": step,
            "sums": sums(first.name, step, values),
        },
    )


def _missed(operations: Operations) -> frozenset[str]:
    """Parameters with a gradient that the last backward did not change and that nothing reduced; none unless all others were changed and reduced in it."""
    last = max((n for n, o in enumerate(operations) if o.kind == "backward"), default=0)
    made = [(n, {v.name: v for v in o.values}) for n, o in enumerate(operations) if o.kind == "made"]
    if len(made) < 2 or not made[-2][0] < last < made[-1][0] or len(operations) >= MOST_OPERATIONS:
        return frozenset()
    before, after = made[-2][1], made[-1][1]
    within = [(n, o) for n, o in enumerate(operations) if _is_within(o)]
    others = any(n < last for n, _ in within) or any(map(reduces_gradients, operations))
    untouched = {
        name for name, value in after.items() if name in before and before[name].exact == value.exact
    }
    changed = after.keys() - untouched
    names = {role.removeprefix(GRADIENT) for _, o in within for role in o.roles}
    # Only where gradients are accumulated: then also those of earlier backwards are to be reduced.
    whole = changed <= names and untouched.isdisjoint(names) and not changed.isdisjoint(before)
    return frozenset(untouched) if whole and not others else frozenset()


def _is_within(o: Operation) -> bool:
    """Whether it reduces gradients within a backward, as a hook does."""
    reduces = o.kind == "collective" and bool(o.reduces) and o.inside == "backward"
    return reduces and any(role.startswith(GRADIENT) for role in o.roles)


RULES = rules_of(
    Expectation(
        name="earlier_backwards",
        detected="(on a GPU: `--probes light,invariants`) Of accumulated gradients, those that the last backward of a step does not reach are never reduced, and their parameters drift apart",
        find=_earlier_backwards,
        says="{names} {was} left out when gradients are reduced: each step has several backwards, the last one reduces the gradients that it makes, and these come from an earlier one alone. {name} is equal on all ranks at first and differs from step {step} on, while all that is reduced stays equal.",
        claim="{sums}",
        fix="Reduce every gradient that the step has made, also those that the last backward does not reach. If separate copies are intended, ignore this.",
        strength=Strength.WEAK,
    ),
    Expectation(
        name="mixed_replicas",
        detected="(on a GPU: `--probes light,invariants`) Gradients are reduced over groups whose ranks never had equal parameters, while ranks that began equal are in different groups and drift apart",
        find=_mixed,
        says="Gradients are averaged between ranks that hold different parts of the model: over ranks {over}, while all parameters begin equal on ranks {parts}, and {name} drifts apart there.",
        claim="{sums}",
        fix="Build the data-parallel groups of the ranks that hold the same part of the model.",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="unsent_updates",
        detected="(on a GPU: `--probes light,invariants`) Each rank updates a share of the parameters (a sharded optimizer by hand), and some are never sent: they move on their owner, and stand still on the others",
        find=_unsent,
        says="{names} {are} updated on {owner} alone and never sent to the others: on {others} {name} stays what it was at the start, although its gradient is reduced on all ranks and {sent} other parameters are sent after each step.",
        claim="sum over {name} before step {last}: {ends}",
        fix="Broadcast every parameter from its owner after the step, also the last ones where they do not divide evenly.",
        strength=Strength.STRONG,
    ),
    Expectation(
        name="untied_copies",
        detected="(on a GPU: `--probes light,invariants`) A weight that stages of a pipeline hold in common (one by its module, one without, as tied embeddings) begins equal on them and drifts apart",
        find=_untied,
        says="{name} is one weight on {ranks}, equal at first: {called} uses it by its module, and {others} for something else, as tied embeddings are. The copies differ from step {since} on: the gradients of its two uses are never summed.",
        claim="{sums}",
        fix="Sum the gradients of tied weights over the stages that hold them, before the optimizer's step.",
        strength=Strength.STRONG,
    ),
    keeps="copies",
    explained_by=("nonfinite", "control_mismatch"),
)

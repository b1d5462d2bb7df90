"""Ranks of which one trains what its peers do not: a layer that is frozen on some ranks only, an optimizer that never steps."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.losses import averages_gradients
from nsadiag.analysis.relations.invariants.operations import source, steps_of
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.patterns.rank_conditions import frozen_on_one_rank
from nsadiag.source.patterns.single_call import only_call

LEAST = 8  # backwards without a step


def unequal_training(case: Case) -> Iterator[Draft | Declined]:
    if not ran_together(case.cell):
        return
    yield from _frozen_on_some(case)
    yield from _never_stepped(case)
    yield Declined(
        "the same parameters are trained on all ranks, and every rank with gradients makes optimizer steps"
    )


def _frozen_on_some(case: Case) -> Iterator[Draft]:
    """One model on all ranks, whose gradients are averaged, and some of which does not ask for a gradient on some ranks."""
    for step in steps_of(case)[:1]:
        rows = {rank: found[0] for rank, found in step.of("trainable").items() if found}
        if len(rows) < len(step.ranks) or len({(o.names, o.of) for o in rows.values()}) > 1:
            return
        unlike = sorted(set.union(*(set(o.frozen) for o in rows.values())))
        frozen = {name: {rank: name in o.frozen for rank, o in rows.items()} for name in unlike}
        apart = [name for name, each in frozen.items() if len(set(each.values())) > 1]
        apart = [name for name in apart if _is_replica(name, rows, step.ranks)]
        if not apart or not averages_gradients(case):
            return
        name = apart[0]
        more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
        trained = tuple(rank for rank, is_frozen in frozen[name].items() if not is_frozen)
        others = tuple(rank for rank in rows if rank not in trained)
        stepped = next(iter(step.of("step").values()))[0]
        yield Draft(
            strength=Strength.STRONG,
            summary=f"{name}{more} is trained on rank {case.cell.names(trained)} and frozen on rank {case.cell.names(others)}, although all ranks begin with one model and average gradients.",
            guilty_ranks=outlier_ranks(frozen[name], case.cell.weight),
            where=Where(parameter=name, step=step.number, phase="optimizer").at(
                frozen_on_one_rank(case.cell.code)
                or only_call(case.cell.code, stepped.name)
                or locations.of_text(stepped.place)
            ),
            evidence={
                f"requires_grad of {name}: "
                + ", ".join(
                    f"rank {r}: {not is_frozen}" for r, is_frozen in list(frozen[name].items())[:8]
                ): source(case)
            },
            fix="Freeze the same parameters on all ranks.",
        )


def _is_replica(name: str, rows: dict[int, Operation], ranks: dict[int, tuple[Operation, ...]]) -> bool:
    """Whether its copies are equal at that step, before any was trained."""
    found = set()
    for rank, row in rows.items():
        held = [v for o in ranks[rank] if o.kind == "step" for v in o.values]
        value = next((v for v in (*row.values, *held) if v.name == name), None)
        found.add(value and (value.shape, value.exact))
    return len(found) == 1 and None not in found


def _never_stepped(case: Case) -> Iterator[Draft]:
    """A rank that goes backward as often as its peers, hands no gradient on, and makes no optimizer step."""
    events = case.events[case.events.phase == Phase.BEGIN]
    count = {
        kind: events[events.kind == kind].groupby("rank").size().to_dict()
        for kind in (Kind.BACKWARD, Kind.OPTIMIZER)
    }
    ranks = [rank.rank for rank in case.cell.ranks]
    idle = tuple(
        r for r in ranks if not count[Kind.OPTIMIZER].get(r) and count[Kind.BACKWARD].get(r, 0) >= LEAST
    )
    both = [
        r
        for r in ranks
        if count[Kind.OPTIMIZER].get(r, 0) >= LEAST and count[Kind.BACKWARD].get(r, 0) >= LEAST
    ]
    if not idle or not both or len(idle) + len(both) < len(ranks):
        return
    noted = [o for rank in case.cell.ranks for row in rank.observed for o in row.operations]
    # A rank that leaves the steps to another one sends it gradients, and gets parameters.
    if any(role.startswith(("gradient", "parameter")) for o in noted for role in o.roles):
        return
    made = {
        r.rank: [o for row in r.observed for o in row.operations if o.kind == "step"] for r in case.cell.ranks
    }
    stepped = next((o for r in both for o in made[r]), None)
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Rank {case.cell.names(idle)} computes gradients in {count[Kind.BACKWARD][idle[0]]} backwards and makes no optimizer step, while its peers make {count[Kind.OPTIMIZER][both[0]]}: its part of the model is not trained.",
        guilty_ranks=idle,
        where=Where(step=0, phase="optimizer").at(locations.of_text(stepped.place) if stepped else None),
        evidence={
            f"rank {idle[0]}: {count[Kind.BACKWARD][idle[0]]} backwards, 0 optimizer steps; rank {both[0]}: {count[Kind.BACKWARD][both[0]]} and {count[Kind.OPTIMIZER][both[0]]}": f"{case.cell.rank(idle[0]).source}/blackbox.bin"
        },
        fix="Call optimizer.step() on every rank whose parameters are trained.",
    )


RULE = Rule(
    name="unequal_training",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="A rank has gradients in every step, keeps them, and never makes an optimizer step, while its peers do; or (`--probes light,invariants`) replicas of one model of which some layers are frozen on some ranks only",
    fix="Train the same parameters on all ranks.",
    check=unequal_training,
    needs=("black_boxes",),
    explained_by=("nonfinite", "unmoved_parameters", "broken_equalities"),
    confused_with=("healthy",),
)

"""Ranks of which one trains what its peers do not: a layer that is frozen on some ranks only, an optimizer that never steps."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.losses import averages_gradients
from nsadiag.analysis.relations.invariants.operations import noted, steps_of
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.correctness.expectation import each_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import named, recorder_of
from nsadiag.analysis.rules.reasons import in_recorded_steps
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.phrases import are
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import by_rank, shortened
from nsadiag.source.patterns.rank_conditions import frozen_on_one_rank
from nsadiag.source.patterns.single_call import only_call

LEAST = 8  # backwards without a step


def frozen_on_some(case: Case) -> Iterator[Draft]:
    """One model on all ranks, whose gradients are averaged, and some of which does not ask for a gradient on some ranks."""
    for step in steps_of(case)[:1]:
        rows = {rank: found[0] for rank, found in step.of("trainable").items() if found}
        if len(rows) < len(step.ranks) or len({(o.names, o.of) for o in rows.values()}) > 1:
            return
        trained = {
            name: {rank: name not in o.frozen for rank, o in rows.items()}
            for name in sorted({name for o in rows.values() for name in o.frozen})
        }
        unlike = [name for name, each in trained.items() if len(set(each.values())) > 1]
        apart = [name for name in unlike if _is_replica(name, rows, step.ranks)]
        if not apart or not averages_gradients(case):
            return
        each, stepped = trained[apart[0]], step.on_first("step")[0]
        on, off = (
            named(case.cell, [r for r, is_on in each.items() if is_on == side]) for side in (True, False)
        )
        yield silent_error(
            case,
            f"{shortened(apart, 1)} {are(apart)} trained on {on} and frozen on {off}, although all ranks begin with one model and average gradients.",
            f"requires_grad of {apart[0]}: {by_rank({rank: str(is_on) for rank, is_on in each.items()})}",
            frozen_on_one_rank(case.cell.code) or only_call(case.cell.code, stepped.name) or stepped.place,
            Where(parameter=apart[0], step=step.number, phase="optimizer"),
            ranks=outlier_ranks(each, case.cell.weight),
        )


def _is_replica(name: str, rows: dict[int, Operation], ranks: dict[int, tuple[Operation, ...]]) -> bool:
    """Whether its copies are equal at that step, before any was trained."""
    found = set()
    for rank, row in rows.items():
        held = [v for o in ranks[rank] if o.kind == "step" for v in o.values]
        value = next((v for v in (*row.values, *held) if v.name == name), None)
        found.add(value and (value.shape, value.exact))
    return len(found) == 1 and None not in found


def never_stepped(case: Case) -> Iterator[Draft]:
    """A rank that goes backward as often as its peers, hands no gradient on, and makes no optimizer step."""
    backwards, steps = (
        case.begun(kind)["rank"].value_counts().to_dict() for kind in (Kind.BACKWARD, Kind.OPTIMIZER)
    )
    trains = [rank for rank in case.cell.ranks if backwards.get(rank.rank, 0) >= LEAST]
    idle = tuple(rank.rank for rank in trains if not steps.get(rank.rank))
    both = [rank for rank in trains if steps.get(rank.rank, 0) >= LEAST]
    if not idle or not both or len(idle) + len(both) < len(case.cell.ranks):
        return
    roles = (role for rank in case.cell.ranks for _, o in noted(rank) for role in o.roles)
    # A rank that leaves the steps to another one sends it gradients, and gets parameters.
    if any(role.startswith(("gradient", "parameter")) for role in roles):
        return
    stepped = next((o for rank in both for _, o in noted(rank, "step")), None)
    count, peer, made = backwards[idle[0]], both[0].rank, steps[both[0].rank]
    yield silent_error(
        case,
        f"Rank {case.cell.names(idle)} computes gradients in {count} backwards and makes no optimizer step, while its peers make {made}: its part of the model is not trained.",
        {
            f"rank {idle[0]}: {count} backwards, 0 optimizer steps; rank {peer}: {backwards[peer]} and {made}": recorder_of(
                case.cell, idle[0]
            )
        },
        stepped.place if stepped else None,
        Where(step=0, phase="optimizer"),
        strength=Strength.LIKELY,
        ranks=idle,
    )


def _kept(case: Case) -> Iterator[Declined]:
    yield from in_recorded_steps(
        case, "the same parameters are trained, and whoever has gradients makes optimizer steps"
    )


RULES = each_of(
    "correctness",
    {
        frozen_on_some: (
            "(on a GPU: `--probes light,invariants`) Replicas of one model of which some layers are frozen on some ranks only",
            "Freeze the same parameters on all ranks.",
        ),
        never_stepped: (
            "A rank has gradients in every step, keeps them, and never makes an optimizer step, while its peers do",
            "Call optimizer.step() on every rank whose parameters are trained.",
        ),
    },
    when=lambda case: ran_together(case.cell),
    kept=_kept,
    keeps="copies",
    needs=("black_boxes",),
    explained_by=("nonfinite", "vanished_loss", "broken_equalities"),
)

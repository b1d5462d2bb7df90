"""Modules that an optimizer is to train and that no gradient reaches, since it is cut between their output and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import source
from nsadiag.analysis.relations.invariants.tensors import (
    Key,
    Look,
    keys_of,
    looks_of,
    summed_elements,
    timeline,
)
from nsadiag.analysis.rules.correctness.wiring.flows import (
    Idle,
    by_key,
    cut_behind,
    flows_of,
    idle_exchanges,
    idle_modules,
    is_collective,
    is_cut_inside,
    runs_without_graph,
)
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Call
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.gradient_cuts import cut_between, number_in_loss, reaches_loss, used_after

MANY = 8  # recorded steps
NOTHING = 1e-6  # of the size of other gradients: the rounding of float32 sums that cancel


def severed_gradients(case: Case) -> Iterator[Draft | Declined]:
    idle = idle_modules(case)
    for found in (
        _cut(case, idle),
        _without_graph(case, idle),
        _lost_in_exchange(case),
        _on_some_ranks(case, idle),
        _as_number(case, idle),
        _rounded_away(case),
    ):
        yield from found
    yield Declined(
        f"gradients reach every module that optimizers hold, or nothing uses it, in {len(flows_of(case))} recorded flows"
    )


def _cut(case: Case, idle: list[Idle]) -> Iterator[Draft]:
    """The output goes on into a trained module, or through a collective into the loss, and carries no gradient there."""
    for each in idle:
        cuts = [cut_behind(each, calls) for calls in each.steps.values()]
        if not all(cuts) or cuts[0] is None:
            continue
        call, later = cuts[0]
        made, taken = locations.of_text(call.place), locations.of_text(later.place)
        place = _place(case, made, taken)
        if is_collective(later):
            if taken is None or not reaches_loss(case.cell.code, taken.file, taken.line):
                continue
            place = used_after(case.cell.code, taken.file, taken.line) or taken
        inside = is_cut_inside(call)
        why = (
            "it runs without recording a graph, although its input carries a gradient"
            if inside
            else f"{later.name} is given its output without a gradient"
        )
        yield _draft(
            case,
            each,
            f"No gradient reaches {each.name}, whose {each.held} parameters the optimizer is to train: {why}.",
            place,
            f"the output of {call.name} ({call.place}) is the input of {later.name} ({later.place}), by checksum, and requires no gradient there",
        )
        return


def _without_graph(case: Case, idle: list[Idle]) -> Iterator[Draft]:
    """It runs inside a model that is trained, returns what carries no gradient, and nothing else changes it either."""
    for each in idle:
        still = _unchanged(case, each) if runs_without_graph(each) else []
        if still:
            yield _draft(
                case,
                each,
                f"No gradient reaches {each.name}, whose {each.held} parameters the optimizer is to train: it runs without recording a graph.",
                locations.of_text(each.key[1]),
                f"what {each.name} returns requires no gradient in any of {len(each.steps)} steps, and {still[0]} is the same at every recorded one",
            )
            return


def _unchanged(case: Case, idle: Idle) -> list[str]:
    """Parameters of the module, all of which are at each recorded step what they were at the first."""
    looks = looks_of(case)
    own = [key for key in keys_of(looks) if key[1].startswith(f"{idle.name}.")]
    moved = any(len({v[idle.rank].exact for _, v in timeline(looks, key)}) > 1 for key in own)
    return [] if moved or len(looks) <= max(idle.steps) else [key[1] for key in own]


def _lost_in_exchange(case: Case) -> Iterator[Draft]:
    """A collective that is no part of the graph is given their output, and the loss is made of what it returns."""
    for each in idle_exchanges(case):
        at = locations.of_text(each.key[1])
        if at is not None and reaches_loss(case.cell.code, at.file, at.line):
            yield _draft(
                case,
                each,
                f"No gradient reaches {each.held} parameters that the optimizer is to train: the loss is made of what {each.name} returns, which carries no gradient.",
                at,
                f"{each.name} ({each.key[1]}) is given what {each.held} parameters have made, none of which has a gradient in steps {', '.join(map(str, each.steps))}",
            )
            return


def _on_some_ranks(case: Case, idle: list[Idle]) -> Iterator[Draft]:
    """The same module has gradients on other ranks, from the same line, in each of these steps."""
    flows = flows_of(case)
    untrained = {(each.rank, each.optimizer, each.key) for each in idle}
    for each in idle:
        others = [
            steps
            for (rank, optimizer), steps in flows.items()
            if optimizer == each.optimizer
            and rank != each.rank
            and (rank, optimizer, each.key) not in untrained
        ]
        trained = [s for s in others if all(_is_trained(each, calls) for calls in s.values())]
        if not trained or each.held < 2:
            continue
        yield _draft(
            case,
            each,
            f"Every gradient of {each.name} is zero on rank {each.rank}, in each of {len(each.steps)} steps, and not on other ranks: nothing of the loss depends on it there.",
            locations.of_text(each.key[1]),
            f"{each.name} ({each.key[1]}): {each.held} parameters without any gradient on rank {each.rank}, steps {', '.join(map(str, each.steps))}",
            (each.rank,),
        )
        return


def _is_trained(idle: Idle, calls: tuple[Call, ...]) -> bool:
    call = by_key(calls).get(idle.key)
    return call is not None and call.graded > 0


def _as_number(case: Case, idle: list[Idle]) -> Iterator[Draft]:
    """The loss is changed by a number that was taken out of the graph."""
    place = number_in_loss(case.cell.code) if idle else None
    each = next((i for i in idle if all(_leads_on(i, calls) for calls in i.steps.values())), None)
    if place is None or each is None:
        return
    yield _draft(
        case,
        each,
        f"No gradient reaches {each.name}, whose {each.held} parameters the optimizer is to train: the loss adds a number that was taken out of the graph.",
        place,
        f"{each.name} ({each.key[1]}) returns its value with a graph, and has no gradient after backward",
    )


def _rounded_away(case: Case) -> Iterator[Draft]:
    """A matrix whose gradient is never more than the rounding of those beside it: all that it would do cancels out."""
    looks = looks_of(case)
    if len(looks) < MANY:
        return
    for rank in case.cell.ranks:
        sizes = [_gradient_sizes(look, rank.rank) for look in looks]
        always = set.intersection(*(set(found) for found in sizes))
        typical = [median(found[key] for key in always) if always else 0.0 for found in sizes]
        for key in sorted(always):
            own = [found[key] for found in sizes]
            if not any(own) or any(mine > NOTHING * most for mine, most in zip(own, typical, strict=True)):
                continue
            module = key[1].rpartition(".")[0]
            called = next((c for s in flows_of(case).values() for c in s[min(s)] if c.name == module), None)
            yield Draft(
                strength=Strength.LIKELY,
                summary=f"The gradient of {key[1]} is nothing but rounding in each of {len(looks)} recorded steps: what it computes cancels out before the loss, and it is not trained.",
                guilty_ranks=tuple(r.rank for r in case.cell.ranks),
                where=Where(module=module, parameter=key[1], step=looks[0].step, phase="backward").at(
                    locations.of_text(called.place) if called else None
                ),
                evidence={
                    f"mean magnitude of the gradient of {key[1]} by step: {', '.join(f'{size:.1e}' for size in own[:8])}; of the middle one of {len(always)} matrices: {', '.join(f'{size:.1e}' for size in typical[:8])}": source(
                        case, rank.rank
                    )
                },
                fix="Look for what makes it constant: a weight that is normalized over a single value, a softmax over one element, a difference of equal terms.",
            )
            return


def _gradient_sizes(look: Look, rank: int) -> dict[Key, float]:
    """Mean magnitudes of the gradients of matrices: those of a bias may be zero in principle, as before a normalization."""
    return {
        key: value.magnitude / summed_elements(value)
        for key, values in look.used.items()
        if (value := values[rank]).magnitude is not None and len(value.shape) > 1
    }


def _leads_on(idle: Idle, calls: tuple[Call, ...]) -> bool:
    """Whether what it returns carries a gradient; of a few numbers nothing is recorded."""
    call = by_key(calls).get(idle.key)
    return call is not None and (not call.made or any(v.carries for v in call.made))


def _place(case: Case, made: Place | None, taken: Place | None) -> Place | None:
    """The line of the cut, where both calls are in one function."""
    if made is None or taken is None or made.file != taken.file or taken.line < made.line:
        return made
    return cut_between(case.cell.code, made.file, made.line, taken.line) or made


def _draft(
    case: Case, idle: Idle, summary: str, place: Place | None, claim: str, ranks: tuple[int, ...] = ()
) -> Draft:
    return Draft(
        strength=Strength.LIKELY,
        summary=summary,
        guilty_ranks=ranks or tuple(rank.rank for rank in case.cell.ranks),
        where=Where(module=idle.name, step=idle.first, phase="backward").at(place),
        evidence={
            claim: source(case, idle.rank),
            f"gradients of {idle.name} are missing or zero in steps {', '.join(map(str, idle.steps))}, while others of the same optimizer are not": source(
                case, idle.rank
            ),
        },
    )


RULE = Rule(
    name="severed_gradients",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="(`--probes light,invariants`) A module that an optimizer holds never gets a gradient, although its output goes on to a trained module or into the loss: detached, copied, made a number, computed without a graph, handed to a collective, or multiplied by zero on some ranks; or its gradient is nothing but rounding",
    fix="Keep the output in the graph (no detach(), .data, .item() or no_grad() on the way to the loss), or freeze the module on purpose with requires_grad_(False).",
    check=severed_gradients,
    explained_by=("nonfinite", "stale_optimizer", "unmoved_parameters"),
    confused_with=("healthy",),
)

"""Modules that an optimizer is to train and that no gradient reaches, since it is cut between their output and the loss."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import source
from nsadiag.analysis.rules.correctness.wiring.flows import (
    Idle,
    by_key,
    cut_behind,
    flows_of,
    idle_modules,
    is_collective,
    is_cut_inside,
)
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Call
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.gradient_cuts import cut_between, number_in_loss, reaches_loss, used_after


def severed_gradients(case: Case) -> Iterator[Draft | Declined]:
    idle = idle_modules(case)
    for found in (_cut(case, idle), _on_some_ranks(case, idle), _as_number(case, idle)):
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
    detected="(`--probes light,invariants`) A module that an optimizer holds never gets a gradient, although its output goes on to a trained module or into the loss: detached, copied, made a number, computed without a graph, or multiplied by zero on some ranks",
    fix="Keep the output in the graph (no detach(), .data, .item() or no_grad() on the way to the loss), or freeze the module on purpose with requires_grad_(False).",
    check=severed_gradients,
    explained_by=("nonfinite", "stale_optimizer", "unmoved_parameters"),
    confused_with=("healthy",),
)

"""Modules that an optimizer is to train and that no gradient reaches, since it is cut between their output and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.tensors import copies_of, looks_of, parameters_of, summed_elements
from nsadiag.analysis.rules.correctness.expectation import each_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.correctness.wiring.flows import (
    Idle,
    cut_behind,
    flows_of,
    idle_exchanges,
    idle_modules,
    is_collective,
    is_cut_inside,
)
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.documents.operations import Call
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.spans import listed
from nsadiag.source.patterns.gradient_cuts import cut_between, number_in_loss, reaches_loss, used_after

MANY = 8  # recorded steps
NOTHING = 1e-6  # of the size of other gradients: the rounding of float32 sums that cancel


def cut_off(case: Case) -> Iterator[Draft]:
    """The output goes on into a trained module, or through a collective into the loss, and carries no gradient there."""
    for each in idle_modules(case):
        cuts = [cut_behind(each, calls) for calls in each.steps.values()]
        if not all(cuts) or cuts[0] is None:
            continue
        call, later = cuts[0]
        taken = locations.of_text(later.place)
        place = _place(case, locations.of_text(call.place), taken)
        if is_collective(later):
            if taken is None or not reaches_loss(case.cell.code, taken.file, taken.line):
                continue
            place = used_after(case.cell.code, taken.file, taken.line) or taken
        why = f"{later.name} is given its output without a gradient"
        if is_cut_inside(call):
            why = "it runs without recording a graph, although its input carries a gradient"
        yield _draft(
            case,
            each,
            f"{_no_gradient(each)}: {why}.",
            f"the output of {call.name} ({call.place}) is the input of {later.name} ({later.place}), by checksum, and requires no gradient there",
            place,
        )
        return


def _place(case: Case, made: Place | None, taken: Place | None) -> Place | None:
    """The line of the cut, where both calls are in one function."""
    if made is None or taken is None or made.file != taken.file or taken.line < made.line:
        return made
    return cut_between(case.cell.code, made.file, made.line, taken.line) or made


def run_without_graph(case: Case) -> Iterator[Draft]:
    """It runs inside a model that is trained, returns what carries no gradient, and nothing else changes it either."""
    for each in idle_modules(case):
        runs_without = all(call.made and not any(v.carries for v in call.made) for call in each.calls)
        still = _unchanged(case, each) if runs_without else []
        if still:
            yield _draft(
                case,
                each,
                f"{_no_gradient(each)}: it runs without recording a graph.",
                f"the output of {each.name} requires no gradient in any of {len(each.steps)} steps, and {still[0]} is the same in each of them",
                each.place,
            )
            return


def _unchanged(case: Case, idle: Idle) -> list[str]:
    """Parameters of the module, all of which are at each recorded step what they were at the first."""
    own = [copies for copies in parameters_of(case) if copies.name.startswith(f"{idle.name}.")]
    still = len(looks_of(case)) > max(idle.steps) and all(copies.is_still(idle.rank) for copies in own)
    return [copies.name for copies in own] if still else []


def lost_in_exchange(case: Case) -> Iterator[Draft]:
    """A collective that is no part of the graph is given their output, and the loss is made of what it returns."""
    for each in idle_exchanges(case):
        at = locations.of_text(each.place)
        if at is not None and reaches_loss(case.cell.code, at.file, at.line):
            yield _draft(
                case,
                each,
                f"No gradient reaches {count(each.held, 'parameter')} that the optimizer is to train: the loss is computed from the output of {each.name}, which carries no gradient.",
                f"the input of {each.name} ({each.place}) is computed from {count(each.held, 'parameter')} without any gradient in steps {each.steps_listed}",
                at,
                subject=f"the modules before {each.name}",
            )
            return


def idle_on_some_ranks(case: Case) -> Iterator[Draft]:
    """The same module has gradients on other ranks, from the same line, in each of these steps."""
    idle = idle_modules(case)
    untrained = {(each.rank, each.optimizer, each.key) for each in idle}
    for each in idle:
        others = [
            steps
            for (rank, optimizer), steps in flows_of(case).items()
            if optimizer == each.optimizer
            and rank != each.rank
            and (rank, optimizer, each.key) not in untrained
        ]
        graded = any(all(_grades(calls.get(each.key)) for calls in steps.values()) for steps in others)
        given = any(
            call.given for steps in others for calls in steps.values() if (call := calls.get(each.key))
        )
        # An expert that no token is sent to has nothing to learn from.
        starved = given and not all(call.given for call in each.calls)
        if not graded or each.held < 2 or starved:
            continue
        yield _draft(
            case,
            each,
            f"Every gradient of {each.name} is zero on rank {each.rank}, in each of {len(each.steps)} steps, and not on other ranks: nothing of the loss depends on it there.",
            f"{each.name} ({each.place}): {count(each.held, 'parameter')} without any gradient on rank {each.rank}, steps {each.steps_listed}",
            each.place,
            (each.rank,),
        )
        return


def _grades(call: Call | None) -> bool:
    return call is not None and call.graded > 0


def loss_from_number(case: Case) -> Iterator[Draft]:
    """The loss is changed by a number that was taken out of the graph, of a module whose output carries a gradient.

    Of a few numbers nothing is recorded.
    """
    each = _left_out(case)
    place = number_in_loss(case.cell.code) if each else None
    if each is not None and place is not None:
        yield _draft(
            case,
            each,
            f"{_no_gradient(each)}: the loss adds a number that was taken out of the graph.",
            f"{each.name} ({each.place}) returns its value with a graph, and has no gradient after backward",
            place,
        )


def _left_out(case: Case) -> Idle | None:
    """A module whose output carries a gradient that nothing asks for: the sources tell whether a loss was to have it."""
    for each in idle_modules(case):
        if all(not call.made or any(v.carries for v in call.made) for call in each.calls):
            return each
    return None


def undecided(case: Case) -> str:
    """The reason for which a job that came to its end may yet have lost a gradient, where its sources are not there to tell."""
    each = None if case.cell.code.kept else _left_out(case)
    return f"{_no_gradient(each)}; why, the sources would tell, and they were not kept" if each else ""


def _no_gradient(idle: Idle) -> str:
    return (
        f"No gradient reaches {idle.name}, of which the optimizer is to train {count(idle.held, 'parameter')}"
    )


def _draft(
    case: Case,
    idle: Idle,
    summary: str,
    claim: str,
    at: Place | str | None,
    ranks: tuple[int, ...] | None = None,
    subject: str = "",
) -> Draft:
    besides = f"gradients of {subject or idle.name} are missing or zero in steps {idle.steps_listed}, while others of the same optimizer are not"
    return silent_error(
        case,
        summary,
        (claim, besides),
        at,
        Where(module=idle.name, step=idle.first, phase="backward"),
        strength=Strength.LIKELY,
        ranks=ranks,
        shown_by=idle.rank,
    )


def rounded_away(case: Case) -> Iterator[Draft]:
    """A matrix whose gradient is never more than the rounding of those beside it: all that it would do cancels out."""
    looks = looks_of(case)
    for rank in case.cell.ranks if len(looks) >= MANY else ():
        sizes = _gradient_sizes(case, rank.rank)
        typical = [median(each) for each in zip(*sizes.values(), strict=True)]
        for name, own in sorted(sizes.items()):
            if not any(own) or any(mine > NOTHING * most for mine, most in zip(own, typical, strict=True)):
                continue
            module = name.rpartition(".")[0]
            flows = (calls.values() for steps in flows_of(case).values() for calls in steps.values())
            called = next((call for calls in flows for call in calls if call.name == module), None)
            shown, middle = (listed(f"{size:.1e}" for size in found) for found in (own, typical))
            yield silent_error(
                case,
                f"The gradient of {name} is nothing but rounding in each of {len(looks)} recorded steps: what it computes cancels out before the loss, and it is not trained.",
                f"mean magnitude of the gradient of {name} by step: {shown}; of the middle one of {len(sizes)} matrices: {middle}",
                called.place if called else None,
                Where(module=module, parameter=name, step=looks[0], phase="backward"),
                strength=Strength.LIKELY,
                shown_by=rank.rank,
            )
            return


def _gradient_sizes(case: Case, rank: int) -> dict[str, list[float]]:
    """By look, mean magnitudes of the gradients of matrices: those of a bias may be zero in principle, as before a normalization."""
    looks, found = len(looks_of(case)), {}
    for copies in copies_of(case, "used").values():
        own = [values[rank] for _, values in copies.at]
        if len(own) == looks and all(len(v.shape) > 1 and v.magnitude is not None for v in own):
            found[copies.name] = [value.magnitude / summed_elements(value) for value in own]
    return found


def _kept(case: Case) -> Iterator[Declined]:
    yield Declined(
        "gradients reach every module whose parameters an optimizer holds and whose output is used"
        if flows_of(case)
        else "no flow of activations was recorded"
    )


KEEP = "Keep the output in the graph (no detach(), .data, .item() or no_grad() on the way to the loss), or freeze the module on purpose with requires_grad_(False)."

RULES = each_of(
    "correctness",
    {
        cut_off: (
            "(on a GPU: `--probes light,invariants`) The output of a module that an optimizer holds goes on to a trained module, or through a collective into the loss, and carries no gradient there",
            KEEP,
        ),
        run_without_graph: (
            "(on a GPU: `--probes light,invariants`) A module that an optimizer holds runs without recording a graph, and never changes",
            KEEP,
        ),
        lost_in_exchange: (
            "(on a GPU: `--probes light,invariants`) The loss is computed from what a collective returns that is no part of the graph",
            KEEP,
        ),
        idle_on_some_ranks: (
            "(on a GPU: `--probes light,invariants`) Every gradient of a module is zero in each step on some ranks, and not on others",
            KEEP,
        ),
        loss_from_number: (
            "(on a GPU: `--probes light,invariants`) The loss adds a number that was taken out of the graph, of a module that never gets a gradient",
            KEEP,
        ),
        rounded_away: (
            "(on a GPU: `--probes light,invariants`) The gradient of a matrix is nothing but rounding in each recorded step",
            "Look for what makes it constant: a weight that is normalized over a single value, a softmax over one element, a difference of equal terms.",
        ),
    },
    kept=_kept,
    keeps="order",
    explained_by=("nonfinite", "stale_optimizer", "vanished_loss"),
)

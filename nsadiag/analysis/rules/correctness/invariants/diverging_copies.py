"""Copies of what no optimizer holds that drift apart: a teacher that one rank alone keeps up, a codebook, running statistics."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.evaluations import looks_of_model, models_everywhere, own_at_evaluations
from nsadiag.analysis.relations.invariants.operations import steps_of
from nsadiag.analysis.relations.invariants.tensors import (
    Copies,
    copies_of,
    is_constant,
    looks_of,
    parameters_of,
)
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.relations.replication import is_replicated
from nsadiag.analysis.rules.correctness.expectation import each_of
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.spans import by_rank
from nsadiag.source.patterns.rank_conditions import write_on_one_rank
from nsadiag.source.patterns.single_call import seeded_by_rank, written_attribute

LEAST = 5  # recorded steps
STATISTICS = re.compile(r"running_(mean|var)$")
# What each rank keeps of its own samples is no state of the model.
OWN = re.compile(r"queue|bank|memory|replay|histor|cache|count|seen|step", re.IGNORECASE)


def _lasting(case: Case, kind: str) -> list[Copies]:
    """Tensors that were read in enough steps, up to the last one."""
    last = steps_of(case)[-1].number if steps_of(case) else None
    return [c for c in copies_of(case, kind).values() if len(c.at) >= LEAST and c.at[-1][0] == last]


def _parts(copies: Copies) -> bool:
    """Whether the copies are equal at first, and not at several steps after that."""
    return 0 < copies.held < len(copies.at) - 1 and copies.has_parted


def _buffers(case: Case) -> list[Copies]:
    """Those of one model on all ranks."""
    return _lasting(case, "buffers") if _replicated(case) else []


def _apart(case: Case) -> list[Copies]:
    return [copies for copies in _buffers(case) if _parts(copies)]


def kept_up_by_some(case: Case) -> Iterator[Draft]:
    """A model that some ranks alone change."""
    for copies in _lasting(case, "beside"):
        moved = tuple(rank for rank in copies.at[0][1] if not copies.is_still(rank))
        if not _parts(copies) or is_constant(copies.first) or not 0 < len(moved) < len(copies.at[0][1]):
            continue
        yield _draft(
            case,
            copies,
            copies.held,
            f"{copies.name} runs on all ranks and was equal on all of them at first, but only rank {case.cell.names(moved)} changes it: the others go on with what it was at the start.",
            write_on_one_rank(case.cell.code),
            Strength.STRONG,
            moved,
        )


def own_follower(case: Case) -> Iterator[Draft]:
    """A copy of what is trained that follows it on every rank, and was never equal, while what is trained is.

    A copy that stands still may be each rank's own on purpose, as an opponent or a fold's teacher.
    """
    if len(looks_of(case)) < LEAST or not _trained_alike(case):
        return
    trained = {each.name: each.first.shape for each in parameters_of(case)}
    for copies in _lasting(case, "beside"):
        is_copy = trained.get(copies.name.partition(".")[2]) == copies.first.shape
        if not is_copy or copies.ever_equal or not copies.follows:
            continue
        yield _draft(
            case,
            copies,
            0,
            f"{copies.name} is a copy of a trained parameter and follows it, but was never equal on all ranks, while what is trained is: each rank has a teacher, or an average, of its own.",
            seeded_by_rank(case.cell.code),
        )
        return


def stale_statistics(case: Case) -> Iterator[Draft]:
    """A copy that is evaluated and follows what is trained, parameter by parameter, with running statistics that stay as they began."""
    moving = {_unwrapped(c.name) for c in _lasting(case, "buffers") if c.moves() >= LEAST - 1}
    noted = _lasting(case, "statistics")
    following = {copies.name.partition(".")[0] for copies in noted if copies.follows}
    for copies in noted:
        model, _, name = copies.name.partition(".")
        still = all(map(copies.is_still, copies.at[0][1]))
        if not still or model not in following or _unwrapped(name) not in moving:
            continue
        yield _draft(
            case,
            copies,
            0,
            f"{model} is evaluated, and its parameters follow those that are trained, but its running statistics ({name}) stay what they were at the start: only parameters are averaged, no buffers.",
            None,
        )
        return


def _unwrapped(name: str) -> str:
    return name.removeprefix("module.")


def _trained_alike(case: Case) -> bool:
    """Whether what optimizers hold moves, and stays equal on all ranks."""
    trained = parameters_of(case)
    return all(copies.is_kept for copies in trained) and any(copies.moves() for copies in trained)


def _replicated(case: Case) -> bool:
    """Whether the ranks train one model without DDP, which would broadcast its buffers."""
    wrapped = any(rank.ddp for rank in case.cell.ranks)
    return not wrapped and len(looks_of(case)) >= LEAST and _trained_alike(case)


def own_state(case: Case) -> Iterator[Draft]:
    """A buffer that was drawn once, as a codebook is, and that each rank updates for itself."""
    for copies in _apart(case):
        name = copies.name.rpartition(".")[2]
        if is_constant(copies.first) or STATISTICS.search(name) or OWN.search(copies.name):
            continue
        yield _draft(
            case,
            copies,
            copies.held,
            f"The buffer {copies.name} was equal on all ranks at first, and each rank has updated its own since, while all parameters stay equal: the ranks train with different states of one model.",
            written_attribute(case.cell.code, name),
        )
        return


def own_statistics(case: Case) -> Iterator[Draft]:
    """Running statistics that each rank keeps for itself, and evaluates with.

    Recorded where it evaluates: they may well be each rank's own while it trains, and be averaged before that.
    """
    if any(row.buffers for rank in case.cell.ranks for row in rank.evaluated):
        yield from _evaluated_with_its_own(case)
        return
    copies = next((copies for copies in _apart(case) if STATISTICS.search(copies.name)), None)
    models = [{row.model for row in rank.evaluated} for rank in case.cell.ranks]
    if copies is None or not set.intersection(*models):
        return
    yield _draft(
        case,
        copies,
        -1,
        f"Every rank evaluates the model with running statistics of its own: {copies.name} differs between ranks, while all parameters are equal.",
        case.cell.ranks[0].evaluated[-1].place,
    )


def _evaluated_with_its_own(case: Case) -> Iterator[Draft]:
    wrapped = [model for rank in case.cell.ranks for model in rank.ddp]
    is_left = is_replicated(case.cell) and not any(model.has("broadcast_buffers") for model in wrapped)
    if not ran_together(case.cell) or not (is_left if wrapped else _replicated(case)):
        return  # DDP broadcasts them before each forward
    for model in models_everywhere(case.cell):
        apart = own_at_evaluations(case.cell, model)
        if not apart:
            continue
        (call, step), name = list(apart.items())[-1]
        looks = {rank.rank: looks_of_model(rank, model, statistics=True) for rank in case.cell.ranks}
        sums = by_rank({rank: each[call, step][name][1] for rank, each in looks.items()}, ".8g")
        claims = (
            f"sum over {name} of {model} at its evaluation {call}, step {step}: {sums}",
            f"it differed at {len(apart)} evaluations, where all parameters were equal",
        )
        rank = case.cell.ranks[0]
        yield silent_error(
            case,
            f"Every rank evaluates the model with running statistics of its own: {name} differs between ranks, while all parameters are equal.",
            dict.fromkeys(claims, f"{rank.source}/evaluated.jsonl"),
            next(row.place for row in rank.evaluated[::-1] if row.model == model),
            Where(parameter=name, step=max(step - 1, 0)),
            strength=Strength.LIKELY,
        )
        return


def _draft(
    case: Case,
    copies: Copies,
    number: int,  # of the step at which it shows
    summary: str,
    at: Place | str | None,
    strength: Strength = Strength.LIKELY,
    ranks: tuple[int, ...] | None = None,
) -> Draft:
    step, values = copies.at[number]
    sums = by_rank({rank: value.total for rank, value in values.items()}, ".8g")
    return silent_error(
        case,
        summary,
        f"sum over {copies.name} at step {step}: {sums}",
        at,
        Where(parameter=copies.name, step=max(step - 1, 0)),
        strength=strength,
        ranks=ranks,
    )


def _kept(case: Case) -> Iterator[Declined]:
    yield Declined(
        "buffers, and parameters that nothing trains, stay as equal as they were"
        if _lasting(case, "beside") or _buffers(case)
        else "no buffer, and no parameter that nothing trains, was recorded"
    )


ALIKE = "Update it on all ranks from the same numbers (all_reduce what it is updated from), or broadcast it."

RULES = each_of(
    "correctness",
    {
        kept_up_by_some: (
            "(on a GPU: `--probes light,invariants`) A model that runs on all ranks and that nothing trains is changed on some ranks only",
            ALIKE,
        ),
        own_follower: (
            "(on a GPU: `--probes light,invariants`) A copy of what is trained follows it on every rank, and was never equal",
            ALIKE,
        ),
        stale_statistics: (
            "(on a GPU: `--probes light,invariants`) A copy that is evaluated follows what is trained, and its running statistics stay as they began",
            "Copy buffers with the parameters, as swa_utils.AveragedModel does with use_buffers=True.",
        ),
        own_state: (
            "(on a GPU: `--probes light,invariants`) A buffer of a model whose parameters stay equal, such as a codebook, is updated by each rank for itself",
            ALIKE,
        ),
        own_statistics: (
            "All ranks evaluate with running statistics of their own, while parameters are equal",
            ALIKE,
        ),
    },
    kept=_kept,
    keeps="copies",
    explained_by=("nonfinite", "broken_equalities", "evaluation_copies"),
)

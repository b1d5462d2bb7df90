"""Copies of what no optimizer holds that drift apart: a teacher that one rank alone keeps up, a codebook, running statistics."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.operations import source, steps_of
from nsadiag.analysis.relations.invariants.tensors import (
    Key,
    equal,
    has_moved,
    is_constant,
    kept_equal,
    keys_of,
    looks_of,
    tensors_of,
    timeline,
)
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.operations import Checksum
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.source.patterns.rank_conditions import write_on_one_rank
from nsadiag.source.patterns.single_call import seeded_by_rank, written_attribute

LEAST = 5  # recorded steps
STATISTICS = re.compile(r"running_(mean|var)$")
# What each rank keeps of its own samples is no state of the model.
OWN = re.compile(r"queue|bank|memory|replay|histor|cache|count|seen|step", re.IGNORECASE)
At = list[tuple[int, dict[int, Checksum]]]


def diverging_copies(case: Case) -> Iterator[Draft | Declined]:
    beside = _timelines(case, "beside")
    for key, at in beside.items():
        yield from _kept_up_by_some(case, key, at)
    yield from _own_follower(case, beside)
    yield from _stale_statistics(case)
    buffers = _timelines(case, "buffers") if _replicated(case) else {}
    apart = {key: at for key, at in buffers.items() if _part(at)}
    yield from _own_state(case, apart)
    yield from _own_statistics(case, apart)
    yield Declined(
        f"{len(beside)} parameters that nothing trains and {len(buffers)} buffers of replicas stay as equal as they were"
    )


def _timelines(case: Case, kind: str) -> dict[Key, At]:
    steps = steps_of(case)
    found: dict[Key, At] = {}
    for step in steps:
        drawn = tensors_of(step, "drawn") if kind == "buffers" else {}
        for key, values in tensors_of(step, kind).items():
            before = [(step.number, drawn[key])] if key in drawn else []
            found.setdefault(key, []).extend([*before, (step.number, values)])
    return {
        key: at for key, at in found.items() if len(at) >= LEAST and steps and at[-1][0] == steps[-1].number
    }


def _part(at: At) -> bool:
    """Whether the copies are equal at first, and never again."""
    held = kept_equal(at)
    return 0 < held < len(at) - 1 and not any(equal(values) for _, values in at[held:])


def _kept_up_by_some(case: Case, key: Key, at: At) -> Iterator[Draft]:
    ranks = at[0][1]
    still = [rank for rank in ranks if len({values[rank].exact for _, values in at}) == 1]
    if not _part(at) or is_constant(at[0][1][min(ranks)]) or not 0 < len(still) < len(ranks):
        return
    moved = tuple(rank for rank in ranks if rank not in still)
    step, values = at[kept_equal(at)]
    yield _draft(
        case,
        key,
        step,
        f"{key[1]} runs on all ranks and was equal on all of them at first, but only rank {case.cell.names(moved)} changes it: the others go on with what it was at the start.",
        write_on_one_rank(case.cell.code),
        values,
        Strength.STRONG,
        moved,
    )


def _own_follower(case: Case, beside: dict[Key, At]) -> Iterator[Draft]:
    """A copy of what is trained that follows it on every rank, and was never equal, while what is trained is.

    A copy that stands still may be each rank's own on purpose, as an opponent or a fold's teacher.
    """
    looks = looks_of(case)
    if len(looks) < LEAST or not _trained_alike(case):
        return
    trained = {key[1]: values[min(values)].shape for key, values in looks[0].held.items()}
    for key, at in beside.items():
        first = at[0][1]
        shape = first[min(first)].shape
        is_copy = trained.get(key[1].partition(".")[2]) == shape
        if not is_copy or any(equal(values) for _, values in at) or not _follows(at):
            continue
        yield _draft(
            case,
            key,
            at[0][0],
            f"{key[1]} is a copy of a trained parameter and follows it, but was never equal on all ranks, while what is trained is: each rank has a teacher, or an average, of its own.",
            seeded_by_rank(case.cell.code),
            first,
            Strength.LIKELY,
        )
        return


def _stale_statistics(case: Case) -> Iterator[Draft]:
    """A copy that is evaluated and follows what is trained, parameter by parameter, with running statistics that stay as they began."""
    trained = _timelines(case, "buffers")
    moving = {_unwrapped(key[1]) for key, at in trained.items() if has_moved(at) >= LEAST - 1}
    noted = _timelines(case, "statistics")
    following = {key[1].partition(".")[0] for key, at in noted.items() if _follows(at)}
    for key, at in noted.items():
        model, _, name = key[1].partition(".")
        still = all(len({values[rank].exact for _, values in at}) == 1 for rank in at[0][1])
        if not still or model not in following or _unwrapped(name) not in moving:
            continue
        yield _draft(
            case,
            key,
            at[0][0],
            f"{model} is evaluated, and its parameters follow those that are trained, but its running statistics ({name}) stay what they were at the start: only parameters are averaged, no buffers.",
            None,
            at[-1][1],
            Strength.LIKELY,
        )
        return


def _unwrapped(name: str) -> str:
    return name.removeprefix("module.")


def _follows(at: At) -> bool:
    """Whether it changes from each step to the next, on every rank."""
    pairs = itertools.pairwise(values for _, values in at)
    return all(before[rank].exact != after[rank].exact for before, after in pairs for rank in before)


def _trained_alike(case: Case) -> bool:
    """Whether what optimizers hold moves, and stays equal on all ranks."""
    looks = looks_of(case)
    each = [timeline(looks, key) for key in keys_of(looks)]
    return bool(each) and all(kept_equal(at) == len(at) for at in each) and any(map(has_moved, each))


def _replicated(case: Case) -> bool:
    """Whether the ranks train one model without DDP, which would broadcast its buffers."""
    wrapped = any(rank.ddp for rank in case.cell.ranks)
    return not wrapped and len(looks_of(case)) >= LEAST and _trained_alike(case)


def _own_state(case: Case, apart: dict[Key, At]) -> Iterator[Draft]:
    """A buffer that was drawn once, as a codebook is, and that each rank updates for itself."""
    for key, at in apart.items():
        name = key[1].rpartition(".")[2]
        step, values = at[kept_equal(at)]
        drawn = not is_constant(at[0][1][min(at[0][1])])
        if not drawn or STATISTICS.search(name) or OWN.search(key[1]):
            continue
        yield _draft(
            case,
            key,
            step,
            f"The buffer {key[1]} was equal on all ranks at first, and each rank has updated its own since, while all parameters stay equal: the ranks train with different states of one model.",
            written_attribute(case.cell.code, name),
            values,
            Strength.LIKELY,
        )
        return


def _own_statistics(case: Case, apart: dict[Key, At]) -> Iterator[Draft]:
    """Running statistics that each rank keeps for itself, and evaluates with."""
    key = next((key for key in apart if STATISTICS.search(key[1])), None)
    if key is None or not all(rank.evaluated for rank in case.cell.ranks):
        return
    models = [{row.model for row in rank.evaluated} for rank in case.cell.ranks]
    if not set.intersection(*models):
        return
    step, values = apart[key][-1]
    yield _draft(
        case,
        key,
        step,
        f"Every rank evaluates the model with running statistics of its own: {key[1]} differs between ranks, while all parameters are equal.",
        locations.of_text(case.cell.ranks[0].evaluated[-1].place),
        values,
        Strength.LIKELY,
    )


def _draft(
    case: Case,
    key: Key,
    step: int,
    summary: str,
    place: Place | None,
    values: dict[int, Checksum],
    strength: Strength,
    ranks: tuple[int, ...] = (),
) -> Draft:
    shown = ", ".join(f"rank {rank}: {v.total:.8g}" for rank, v in sorted(values.items())[:8])
    return Draft(
        strength=strength,
        summary=summary,
        guilty_ranks=ranks or tuple(rank.rank for rank in case.cell.ranks),
        where=Where(parameter=key[1], step=max(step - 1, 0)).at(place),
        evidence={f"sum over {key[1]} at step {step}: {shown}": source(case)},
    )


RULE = Rule(
    name="diverging_copies",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="(`--probes light,invariants`) A model that runs on all ranks and that nothing trains is changed on some ranks only, or follows what is trained and was never equal; or a buffer of a model whose parameters stay equal differs: a codebook, or running statistics with which all ranks evaluate",
    fix="Update it on all ranks from the same numbers (all_reduce what it is updated from), or broadcast it.",
    check=diverging_copies,
    explained_by=("nonfinite", "broken_equalities", "evaluation_copies"),
    confused_with=("healthy",),
)

"""Parameters that a forward did not use, so that a DDP bucket never filled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, is_of_a_collective, place_of
from nsadiag.analysis.facts.exits import breaks, first_break
from nsadiag.analysis.facts.parameters import (
    branch_around,
    unused_in,
    without_gradient,
    without_gradient_now,
)
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import all_but, hung_or_crashed, named
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.exceptions import NOT_RAISED
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import shortened

UNFINISHED = "Expected to have finished reduction in the prior iteration"
# Lightning's own message, without the parameters, which replaces DDP's.
IN_OTHER_WORDS = "has parameters that were not used in producing the loss"
ONE_SIDED = "A branch on this rank's own data skips the module: let every rank run it (multiply by zero), or use find_unused_parameters=True."
EVERYWHERE = "Remove the unused parameters, freeze them with requires_grad_(False), or use find_unused_parameters=True."


def ddp_unused_parameter(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is not None and first.kind == "exception" and _says_so(first.rank):
        yield _said(case.cell, first.rank)
    elif _is_left_behind(case.cell):
        yield from _never_filled(case)
    yield from other_break(case.cell)


def _says_so(rank: RankEvidence) -> bool:
    if not rank.exception:
        return False
    message = first_of(rank.exception).message
    return UNFINISHED in message or IN_OTHER_WORDS in message


def _unused(rank: RankEvidence, message: str) -> tuple[list[str], str]:
    """The unused parameters by DDP's message, or else by the optimizer's last step; and the file that shows them."""
    if said := unused_in(rank, message):
        return said, "ddp.json"
    known = _ddp_parameters(rank)
    row = without_gradient(rank)
    return [n for n in (row.missing if row else ()) if n in known], "ungraded.jsonl"


def _module(parameter: str | None) -> str | None:
    return parameter.rpartition(".")[0] if parameter else None


def _branch(at: Place | None) -> Claims:
    if at is None:
        return {}
    claim = f"whether it runs is decided at {locations.short(at)}: {at.code}"
    return {claim: "sources/index.json"}


def _said(cell: CellEvidence, rank: RankEvidence) -> Draft:
    exception = first_of(rank.exception or NOT_RAISED)
    guilty = tuple(r.rank for r in cell.ranks if _says_so(r))
    unused, told_by = _unused(rank, exception.message)
    everywhere = len(guilty) == len(cell.ranks)
    branch = branch_around(cell, rank, unused)
    ranks = "every rank" if everywhere else named(cell, guilty)
    evidence = {f"DDP: {UNFINISHED}": f"{rank.source}/exception.json"}
    if unused:
        evidence[f"no gradient arrived for {shortened(unused)}"] = f"{rank.source}/{told_by}"
    return Draft(
        strength=Strength.CONCLUSIVE,
        summary=f"On {ranks}, {shortened(unused) or 'some parameters'} took no part in the previous forward, so DDP never finished reducing.",
        guilty_ranks=guilty,
        blocked_ranks=all_but(cell, guilty),
        where=Where(
            parameter=unused[0] if unused else None,
            module=_module(unused[0]) if unused else None,
            phase="forward",
            step=rank.end.steps,
        ).at(branch or place_of(exception)),
        evidence={**evidence, **_branch(branch)},
        fix=EVERYWHERE if everywhere else ONE_SIDED,
    )


def _is_left_behind(cell: CellEvidence) -> bool:
    """Whether ranks wait, or failed because a peer was gone: no error reports a bucket that never fills."""
    if is_still(cell) or cell.stopped == "hang":
        return True
    return any(b.follows_a_peer or _of_a_collective(b.rank) for b in breaks(cell))


def _of_a_collective(rank: RankEvidence) -> bool:
    return bool(rank.exception and is_of_a_collective(first_of(rank.exception)))


def _ddp_parameters(rank: RankEvidence) -> set[str]:
    """Parameters of models that wait for all of them (without find_unused_parameters)."""
    waiting = [m for m in rank.ddp if not m.has("find_unused_parameters")]
    return {p.full_name for m in waiting for p in m.parameters}


def _never_filled(case: Case) -> Iterator[Draft]:
    """Parameters without a gradient in the last step of some ranks only: the others' buckets wait for them."""
    steps = {r.rank: int(r.end.steps or 0) for r in case.cell.ranks}
    with_ddp = [r for r in case.cell.ranks if r.ddp]
    found = {r.rank: w for r in with_ddp if (w := _at_the_last_optimizer_step(r))}
    if not found and _waits_for_a_bucket(case):
        found = {r.rank: w for r in with_ddp if (w := _at_the_last_look(r, min(steps.values())))}
    if not found or len(found) == len(case.cell.ranks):
        return
    guilty = tuple(sorted(found))
    # The others do not wait for gradients that were missing long before.
    if steps[guilty[0]] - found[guilty[0]].step <= 1:
        yield _unfilled(case, guilty, found[guilty[0]])


@dataclass(frozen=True, kw_only=True)
class _Without:
    """Parameters that got no gradient in a rank's last backward."""

    names: list[str]
    step: int
    claim: str
    source: str


def _at_the_last_optimizer_step(rank: RankEvidence) -> _Without | None:
    row = without_gradient(rank)
    known = _ddp_parameters(rank)
    names = [n for n in (row.missing if row else ()) if n in known]
    if row is None or not names:
        return None
    step = row.step
    claim = f"at step {step} the optimizer of rank {rank.rank} found no gradient for {shortened(names)}"
    return _Without(names=names, step=step, claim=claim, source=f"{rank.source}/ungraded.jsonl")


def _at_the_last_look(rank: RankEvidence, step: int) -> _Without | None:
    """The same, captured while the others were in the backward of that step and this rank had finished it."""
    missing = without_gradient_now(rank)
    static = any(m.has("static_graph") for m in rank.ddp)
    if missing is None or missing[1] - step not in (0, 1) or static:
        return None
    known = _ddp_parameters(rank)
    names = [n for n in missing[0] if n in known]
    if not names:
        return None
    claim = f"rank {rank.rank} has finished the backward of step {step}, in which {shortened(names)} got no gradient and all its other parameters did"
    return _Without(names=names, step=step, claim=claim, source=missing[2])


def _waits_for_a_bucket(case: Case) -> bool:
    """Whether a rank waits for a bucket, in backward or, under NCCL, long after it."""
    return bool(case.reducing) or any(
        "_engine_run_backward" in s.inner for r, s in case.thread_states.items() if case.cell.rank(r).ddp
    )


def _unfilled(case: Case, guilty: tuple[int, ...], without: _Without) -> Draft:
    rank, names = case.cell.rank(guilty[0]), without.names
    others = all_but(case.cell, guilty)
    branch = branch_around(case.cell, rank, names)
    waits = next((case.thread_states[r].place for r in others if r in case.thread_states), None)
    return Draft(
        outcome=hung_or_crashed(case.cell),
        strength=Strength.STRONG,
        summary=f"On {named(case.cell, guilty)}, {shortened(names)} took no part in step {without.step}: DDP's bucket never filled there, and its peers wait for it.",
        guilty_ranks=guilty,
        blocked_ranks=others,
        where=Where(parameter=names[0], module=_module(names[0]), phase="forward", step=without.step).at(
            branch or _forward(rank, case)
        ),
        peers_at=waits,
        evidence={
            without.claim: without.source,
            "DDP waits for every parameter (find_unused_parameters=False)": f"{rank.source}/ddp.json",
            **_branch(branch),
        },
        fix=ONE_SIDED,
    )


def _forward(rank: RankEvidence, case: Case) -> Place | None:
    """The call of the model in the last step."""
    events = case.events
    calls = events[(events["rank"] == rank.rank) & (events.kind == Kind.FORWARD) & (events.site != "")]
    return locations.of_text(str(calls.site.iloc[-1])) if len(calls) else None


RULE = Rule(
    name="ddp_unused_parameter",
    means={"ddp_unused_parameter": "DDP waits for parameters that this forward did not use."},
    family="exit",
    outcome="crashed",
    detected="DDP's \"expected to have finished reduction\": which parameters, on which ranks. Or, where no later forward would raise it, peers wait while one rank's optimizer found no gradient for parameters that DDP waits for, or the rank, asked during the snapshot, has no gradient for them and one for all others. `where` is the condition in the model's `forward` that all of these parameters and no used one depend on, if there is exactly one; otherwise the call of the model",
    fix="Remove or freeze the unused parameters, let every rank run the module, or use find_unused_parameters=True.",
    check=ddp_unused_parameter,
    needs=("ends",),
    explained_by=("ddp_static_graph_violation",),
    confused_with=("rank_exception", "missing_rank"),
)

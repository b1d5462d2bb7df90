"""Parameters that a forward did not use, so that a DDP bucket never filled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, is_of_a_collective, place_of
from nsadiag.analysis.facts.exits import Break, breaks, first_break
from nsadiag.analysis.facts.parameters import (
    branch_around,
    unused_in,
    without_gradient,
    without_gradient_now,
)
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.rules.drafts import all_but, at_line, hung_or_crashed, line_of, module_of, named
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


@dataclass(frozen=True, kw_only=True)
class Ungraded:
    """Parameters that got no gradient in a rank's last backward."""

    names: list[str]
    step: int
    claim: str
    source: str


def ddp_unused_parameter(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    if first is not None and first.kind == "exception" and _says_so(first.rank):
        yield _said(case.cell, first.rank)
    elif hung_or_crashed(case.cell) == "hung" or any(_lost_a_peer(b) for b in breaks(case.cell)):
        # No error reports a bucket that never fills: ranks wait, or fail because a peer is gone.
        yield from _never_filled(case)
    yield from other_break(case.cell)


def _says_so(rank: RankEvidence) -> bool:
    message = first_of(rank.exception or NOT_RAISED).message
    return UNFINISHED in message or IN_OTHER_WORDS in message


def _lost_a_peer(broke: Break) -> bool:
    raised = broke.rank.exception
    return broke.follows_a_peer or (raised is not None and is_of_a_collective(first_of(raised)))


def _said(cell: CellEvidence, rank: RankEvidence) -> Draft:
    exception = first_of(rank.exception or NOT_RAISED)
    guilty = tuple(r.rank for r in cell.ranks if _says_so(r))
    unused, told_by = unused_in(rank, exception.message), "ddp.json"
    if not unused and (seen := _at_the_last_optimizer_step(rank)):
        unused, told_by = seen.names, "ungraded.jsonl"
    everywhere = len(guilty) == len(cell.ranks)
    evidence = {f"DDP: {UNFINISHED}": f"{rank.source}/exception.json"}
    if unused:
        evidence[f"no gradient arrived for {shortened(unused)}"] = f"{rank.source}/{told_by}"
    branch, name = branch_around(cell, rank, unused), unused[0] if unused else None
    return Draft(
        outcome="crashed",
        strength=Strength.CONCLUSIVE,
        summary=f"On {'every rank' if everywhere else named(cell, guilty)}, {shortened(unused) or 'some parameters'} took no part in the previous forward, so DDP never finished reducing.",
        guilty_ranks=guilty,
        at=branch or place_of(exception),
        where=Where(parameter=name, module=module_of(name), phase="forward"),
        evidence={**evidence, **_decided_at(branch)},
        fix=EVERYWHERE if everywhere else ONE_SIDED,
    )


def _decided_at(branch: Place | None) -> Claims:
    if branch is None:
        return {}
    return {f"whether it runs is decided{at_line(branch)}: `{branch.code}`": "sources/index.json"}


def _never_filled(case: Case) -> Iterator[Draft]:
    """Parameters without a gradient in the last step of some ranks only: the others' buckets wait for them."""
    cell, with_ddp = case.cell, [rank for rank in case.cell.ranks if rank.ddp]
    steps = {rank.rank: int(rank.end.steps or 0) for rank in cell.ranks}
    found = {r.rank: ungraded for r in with_ddp if (ungraded := _at_the_last_optimizer_step(r))}
    if not found and _waits_for_a_bucket(case):
        first = min(steps.values())
        found = {r.rank: ungraded for r in with_ddp if (ungraded := _at_the_last_look(r, first))}
    guilty = tuple(sorted(found))
    # The others do not wait for gradients that were missing long before.
    if found and len(found) < len(cell.ranks) and steps[guilty[0]] - found[guilty[0]].step <= 1:
        yield _unfilled(case, guilty, found[guilty[0]])


def _at_the_last_optimizer_step(rank: RankEvidence) -> Ungraded | None:
    row = without_gradient(rank)
    names = _waited_for(rank, row.missing) if row else []
    if row is None or not names:
        return None
    claim = f"at step {row.step} the optimizer of rank {rank.rank} found no gradient for {shortened(names)}"
    return Ungraded(names=names, step=row.step, claim=claim, source=f"{rank.source}/ungraded.jsonl")


def _at_the_last_look(rank: RankEvidence, step: int) -> Ungraded | None:
    """The same, captured while the others were in the backward of that step and this rank had finished it."""
    missing = without_gradient_now(rank)
    if missing is None or missing[1] - step not in (0, 1) or any(m.has("static_graph") for m in rank.ddp):
        return None
    names, _, source = missing
    names = _waited_for(rank, names)
    claim = f"rank {rank.rank} has finished the backward of step {step}, in which {shortened(names)} got no gradient and all its other parameters did"
    return Ungraded(names=names, step=step, claim=claim, source=source) if names else None


def _waited_for(rank: RankEvidence, missing: Iterable[str]) -> list[str]:
    """Those of models that wait for all their parameters (without find_unused_parameters)."""
    waiting = [m for m in rank.ddp if not m.has("find_unused_parameters")]
    known = {p.full_name for m in waiting for p in m.parameters}
    return [name for name in missing if name in known]


def _waits_for_a_bucket(case: Case) -> bool:
    """Whether a rank waits for a bucket, in backward or, under NCCL, long after it."""
    return bool(case.reducing) or any(
        "_engine_run_backward" in s.inner for r, s in case.thread_states.items() if case.cell.rank(r).ddp
    )


def _unfilled(case: Case, guilty: tuple[int, ...], ungraded: Ungraded) -> Draft:
    rank, names = case.cell.rank(guilty[0]), ungraded.names
    branch = branch_around(case.cell, rank, names)
    return Draft(
        strength=Strength.STRONG,
        summary=f"On {named(case.cell, guilty)}, {shortened(names)} took no part in step {ungraded.step}: DDP's bucket never filled there, and its peers wait for it.",
        guilty_ranks=guilty,
        at=branch or _forward(case, rank.rank),
        where=Where(parameter=names[0], module=module_of(names[0]), phase="forward", step=ungraded.step),
        peers_at=line_of(case, all_but(case.cell, guilty)),
        evidence={
            ungraded.claim: ungraded.source,
            "DDP waits for every parameter (find_unused_parameters=False)": f"{rank.source}/ddp.json",
            **_decided_at(branch),
        },
        fix=ONE_SIDED,
    )


def _forward(case: Case, rank: int) -> Place | None:
    """The call of the model in the last step."""
    calls = case.events_of(rank, Kind.FORWARD)
    calls = calls[calls.site != ""]
    return locations.of_text(str(calls.site.iloc[-1])) if len(calls) else None


RULE = Rule(
    means={"ddp_unused_parameter": "DDP waits for parameters that this forward did not use."},
    family="exit",
    detected="DDP raised \"expected to have finished reduction\": the message says which parameters, on which ranks. Or no later forward would raise it, and peers wait while one rank's optimizer found no gradient for parameters that DDP waits for; or the rank, captured after its backward, has no gradient for them and one for all others. `where` is the one condition in the model's `forward` that all of these parameters and no used one depend on, otherwise the call of the model.",
    fix="Remove or freeze the unused parameters, let every rank run the module, or use find_unused_parameters=True.",
    check=ddp_unused_parameter,
    needs=("ends",),
    explained_by=("ddp_static_graph_violation",),
    confused_with=("rank_exception", "missing_rank"),
)

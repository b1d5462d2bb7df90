"""Ranks with other versions of torch or NCCL than their peers, in a job whose ranks wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.explanation import Explanation, explain, is_stuck
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import unlike_most
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import blocked_ranks
from nsadiag.analysis.rules.drafts import all_but, claims_of, named
from nsadiag.analysis.rules.reasons import blocked_elsewhere, other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import count, these
from nsadiag.evidence.records import Strength, Where

# Libraries that determine a rank's calls and their transport: their keys in settings.json, and their names.
LIBRARIES = {"torch": "torch", "git": "torch's commit", "cuda": "CUDA", "hip": "HIP", "nccl": "NCCL"}
# Explanations in which library versions play no part.
OF_THE_CODE = ("rank_conditional_collective", "uneven_inputs", "grad_sync_mismatch")


def library_version_mismatch(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    versions = {r.rank: r.settings.versions for r in cell.ranks if r.settings.versions}
    library = next((key for key in LIBRARIES if len({str(v.get(key)) for v in versions.values()}) > 1), None)
    if library is None:
        yield Declined(_same(versions))
        return
    stated = {rank: str(v.get(library)) for rank, v in versions.items()}
    guilty = unlike_most(stated, cell.weight).ranks
    if not is_stuck(case):
        yield from other_break(cell)
        return
    if blocked_ranks(case):
        yield from blocked_elsewhere(case)
        return
    divergence = case.once(explain)
    if divergence and (divergence.best.cls in OF_THE_CODE or set(divergence.best.guilty) != set(guilty)):
        yield divergence.best.declined(cell)
        return
    yield _draft(cell, LIBRARIES[library], stated, guilty, divergence)


def _same(versions: dict[int, dict[str, object]]) -> str:
    if len(versions) < 2:
        return f"the versions of {count(len(versions), 'rank')} are on record: nothing to compare"
    first = next(iter(versions.values()))
    known = ", ".join(f"{LIBRARIES[key]} {first[key]}" for key in ("torch", "nccl") if first.get(key))
    return f"{these(sorted(versions))} have the same versions: {known}"


def _draft(
    cell: CellEvidence,
    library: str,
    stated: dict[int, str],
    guilty: tuple[int, ...],
    divergence: Explanation | None,
) -> Draft:
    others = all_but(cell, guilty)
    pair = (guilty[0], others[0])
    differ = f"{library[:1].upper()}{library[1:]} is {stated[pair[0]]} on {named(cell, guilty)}, but {stated[pair[1]]} on {named(cell, others)}"
    evidence = {
        f"rank {r} has {library} {stated[r]}": f"{cell.rank(r).source}/settings.json#versions" for r in pair
    }
    if divergence is None:
        here, peers_at = (locations.of_rank_now(cell.rank(r)) for r in pair)
        return Draft(
            # The difference is certain; without a line, that it causes the hang is not.
            strength=Strength.LIKELY,
            summary=f"{differ}.",
            guilty_ranks=guilty,
            at=here,
            peers_at=peers_at,
            evidence=evidence,
        )
    return Draft(
        strength=Strength.STRONG,
        summary=f"{differ}; {named(cell, guilty)} {divergence.best.because}.",
        guilty_ranks=guilty,
        at=divergence.best.where,
        where=Where(collective=divergence.collective),
        peers_at=divergence.peers_at,
        evidence={**evidence, **claims_of(divergence.evidence)},
    )


RULE = Rule(
    means={
        "library_version_mismatch": "Ranks have different versions of torch, CUDA or NCCL, and wait for each other."
    },
    family="structure",
    detected="The versions of torch, CUDA, HIP or NCCL in the ranks' settings.json differ, and ranks wait for each other, or the transport rejected what a peer sent. It does not apply where a rank is blocked on its own, raised an exception of its own, or diverged at a branch on the rank or because its data ran out. Where the outliers are also the ranks that diverged, `where` is the line; otherwise the confidence is lower.",
    fix="Start all ranks from one image or environment, and compare `python -m torch.utils.collect_env` on their hosts.",
    actions=("exclude host", "fix code"),
    check=library_version_mismatch,
    needs=("ends",),
    confused_with=(
        "data_divergent_control_flow",
        "rank_conditional_collective",
        "collective_order_mismatch",
        "network_stall",
    ),
)

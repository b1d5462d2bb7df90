"""Ranks that another tool or a library's own check names."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, place_of
from nsadiag.analysis.records import CellEvidence, Collected, Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.messages import RankDisagreement, ToolAnswer
from nsadiag.evidence.phrases import capitalized, these
from nsadiag.evidence.records import Strength

MOST_CITED = 4
NAMES = {
    "torchfrtrace": "torchfrtrace",
    "nccl ras": "NCCL's RAS",
    "monitored barrier": "the monitored barrier",
    "horovod": "Horovod's stall inspector",
}
CLASSES = {"missing": "missing_rank", "mismatch": "collective_args_mismatch", "dead": "rank_killed"}
FIXES = {
    "missing": "Find what keeps these ranks from the call: their stacks (py-spy dump --pid PID) show the line.",
    "mismatch": "Compare what these ranks passed at that call with what the others did, in the same output.",
    "dead": "Find the end of that process: its own log, and the kernel's or the scheduler's record of it.",
}


def tool_answers(case: Case) -> Iterator[Draft | Declined]:
    told = case.told
    if checks := told.of(RankDisagreement):
        yield _disagreement(case.cell, checks)
    answers = [
        (answer, source) for answer, source in told.of(ToolAnswer) if answer.tool != "monitored barrier"
    ]
    for kind in CLASSES:
        found = [(answer, source) for answer, source in answers if answer.kind == kind and answer.ranks]
        if found:
            yield _draft(told, kind, found)
    for answer, source in answers[:1]:
        yield Declined(f"{NAMES[answer.tool]} names no rank as missing, dead or at odds", source)


def _draft(told: Collected, kind: str, answers: list[tuple[ToolAnswer, str]]) -> Draft:
    ranks = tuple(sorted({rank for answer, _ in answers for rank in answer.ranks}))
    answer = answers[0][0]
    are = "is" if len(ranks) == 1 else "are"
    what = {
        "missing": f"{are} missing from a call in which the others wait",
        "mismatch": f"{are} at odds with the others in a call",
        "dead": f"{are} no longer there",
    }[kind]
    return Draft(
        cls=CLASSES[kind],
        outcome="hung",
        strength=Strength.LIKELY,
        summary=f"{capitalized(these(ranks))} {what}, by the answer of {NAMES[answer.tool]}.",
        guilty_ranks=ranks,
        evidence={
            each.text.splitlines()[0][:200]: source for each, source in answers[:MOST_CITED] if each.text
        },
        gaps=(f"what {NAMES[answer.tool]} read is not among these files",),
        fix=FIXES[kind],
        actions=("stop", "unknown"),
    )


def _disagreement(cell: CellEvidence, checks: list[tuple[RankDisagreement, str]]) -> Draft:
    ranks = tuple(sorted({check.unlike for check, _ in checks}))
    raised = next((r.exception for r in cell.ranks if r.exception), None) or next(iter(cell.unnamed), None)
    return Draft(
        cls="divergent_module_execution",
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=f"{capitalized(these(ranks))} ran other modules, or in another order, than rank 0: the library's own check of the ranks against each other says so.",
        guilty_ranks=ranks,
        at=place_of(first_of(raised)) if raised else None,
        evidence={
            f"{these((check.unlike,))} had {check.here[:80] or 'another course'}, rank 0 {check.at_rank_0[:80] or 'its own'}": source
            for check, source in checks[:MOST_CITED]
        },
        fix="Let every rank run the same modules in the same order in every step: a branch, an expert or a modality that only some ranks use is the usual cause (with ZeRO-3: deepspeed.utils.set_z3_leaf_modules).",
        actions=("fix code",),
    )


RULE = Rule(
    concludes=("missing_rank", "collective_args_mismatch", "rank_killed", "divergent_module_execution"),
    about="collected",
    family="divergence",
    detected="The output of torchfrtrace or of NCCL's RAS names ranks as missing, dead or at odds, or a library's own check says that a rank's course differs from rank 0's.",
    fix="See what these ranks do.",
    actions=("unknown",),
    check=tool_answers,
    confused_with=("missing_rank", "collective_order_mismatch"),
)

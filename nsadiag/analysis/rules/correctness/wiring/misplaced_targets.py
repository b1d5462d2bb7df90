"""Targets of a loss that are those of other rows: not shifted behind their inputs, or numbered as if gathered rows began with this rank's."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.invariants.losses import backwards_of, terms_of
from nsadiag.analysis.relations.invariants.operations import LEAST, steps_of
from nsadiag.analysis.relations.invariants.tensors import inputs_differ
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Where
from nsadiag.source.patterns.single_call import target_near


def misplaced_targets(case: Case) -> Iterator[Draft | Declined]:
    terms = {each.step: each.all_terms() for each in backwards_of(case)}
    terms = {step: found for step, found in terms.items() if found and all(found.values())}
    if len(terms) < LEAST:
        steps = count(len(terms), "step")
        yield Declined(
            f"targets of a classification were recorded on all ranks in {steps}: too few to compare"
        )
        return
    single = terms_of(case)
    if single and all(t.unshifted for found in single.values() for t in found.values()):
        yield _draft(
            case,
            "The targets are the model's input tokens at the same positions, without the last of each sequence: they are not shifted, so that the model learns to copy.",
            f"in each of {len(single)} steps, on every rank: targets equal the input without its last position, and not the input without its first",
            "Compare the output at each position with the next token: logits[:, :-1] with ids[:, 1:].",
        )
    if _ignores_rank(case):
        rows, classes = next((each[0].rows, each[0].classes) for each in next(iter(terms.values())).values())
        yield _draft(
            case,
            f"Every rank's targets are 0 to {rows - 1}, although its {rows} rows are compared with {classes} rows gathered from all ranks: only those of rank 0 are its own.",
            f"in each of {len(terms)} steps: {rows} targets 0, 1, 2, ... on all ranks, over {classes} = {case.cell.world_size} * {rows} classes, behind an all_gather; the first {rows} of them are equal on all ranks",
            "Add rank * batch_size to the targets.",
        )
    yield Declined(
        f"the targets of {count(len(terms), 'step')} are neither the inputs themselves nor numbered alike on all ranks"
    )


def _ignores_rank(case: Case) -> bool:
    everyone, terms = case.cell.world_size, {each.step: each.all_terms() for each in backwards_of(case)}
    for step in steps_of(case):
        found = terms.get(step.number, {})
        every = [t for each in found.values() for t in each]
        if not all(found.values()) or any(not t.is_range or t.classes != everyone * t.rows for t in every):
            return False
        # Own rows that come first differ on the ranks; of unknown ones, they may.
        first = {tuple(t.compared_first for t in each) for each in found.values()}
        if len(first) > 1 or not all(t.compared_first for t in every):
            return False
        gathered = all(any("gather" in o.name for o in ops) for ops in step.of("collective").values())
        if not gathered or len({t.rows for t in every}) != 1:
            return False
    # The same batch on all ranks is another matter.
    return inputs_differ(case)


def _draft(case: Case, summary: str, claim: str, fix: str) -> Draft:
    place = locations.of_text(next(iter(backwards_of(case)[0].ranks.values()))[0].place)
    at = target_near(case.cell.code, place) or place
    return silent_error(
        case, summary, claim, at, Where(step=backwards_of(case)[0].step, phase="forward"), fix
    )


RULE = Rule(
    family="correctness",
    detected="(on a GPU: `--probes light,invariants`) Targets equal the model's input tokens at the same positions; or rows that are compared with those of all ranks, rank 0's first, have the same targets 0, 1, 2, ... on every rank",
    fix="Give each row the target that belongs to it.",
    check=misplaced_targets,
    keeps="order",
    explained_by=("nonfinite", "control_mismatch"),
)

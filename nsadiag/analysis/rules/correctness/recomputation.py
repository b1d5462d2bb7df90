"""Activation checkpointing that recomputes other modules in backward than ran in forward: wrong gradients without an error.

The usual cause is late binding of a loop variable: `checkpoint(lambda x: block(x), x)` in a loop over blocks recomputes
the last block every time. The loss falls, and every block but the last is trained by wrong gradients. Another one is
`preserve_rng_state=False` around dropout: backward draws other masks than forward did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.rules.correctness.control_mismatch import claims
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.drafts import named, recorder_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Recomputed
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind


def recomputation(case: Case) -> Iterator[Draft | Declined]:
    wrong = [rank for rank in case.cell.ranks if rank.recomputed]
    if not wrong:
        if len(rerun := case.begun(Kind.RECOMPUTE)):
            yield Declined(
                f"{count(len(rerun), 'checkpointed call')} on {named(case.cell, rerun['rank'].unique())} ran the same modules in backward as in forward",
                recorder_of(case.cell, rerun["rank"][0]),
            )
        return
    rows, file = wrong[0].recomputed, f"{wrong[0].source}/recomputed.jsonl"
    row = rows[0]
    if not row.differs:
        yield _redrawn(case, wrong, row)
        return
    others = len({_ran(r)[0] for r in rows}) - 1
    shown = [
        f"{r.function}: {_ran(r)[0]} in forward, {_ran(r)[1]} in backward, step {r.step}" for r in rows[:3]
    ]
    forward, again = _ran(row)
    yield silent_error(
        case,
        f"Gradients are wrong: activation checkpointing ran {forward} in forward and {again} instead in backward{f' (and {others} more like it)' if others else ''}.",
        {**dict.fromkeys(shown, file), **claims(case.cell)},
        _place(row),
        Where(
            module=row.forward[0] if row.forward else None,
            parameter=_parameter(row),
            step=row.step,
            phase="backward",
        ),
        strength=Strength.CONCLUSIVE,
        ranks=(rank.rank for rank in wrong),
    )


def _redrawn(case: Case, wrong: list[RankEvidence], row: Recomputed) -> Draft:
    claim = f"{row.function} draws random numbers in forward, and began again in backward of step {row.step} from another state of torch's generator"
    return silent_error(
        case,
        f"Gradients are wrong: activation checkpointing computes {row.function} again with other random numbers than in forward, so that dropout has other masks in backward.",
        {claim: f"{wrong[0].source}/recomputed.jsonl", **claims(case.cell)},
        _place(row),
        Where(module=row.forward[0] if row.forward else None, step=row.step, phase="backward"),
        "Leave preserve_rng_state at its default, True; where it is, hand over the tensors of the device whose generator is used as arguments.",
        ranks=(rank.rank for rank in wrong),
    )


def _names(modules: Iterable[str]) -> str:
    return ", ".join(modules) or "no module"


def _ran(row: Recomputed) -> tuple[str, str]:
    """The modules that ran in forward and in backward; without modules the parameters, by their variables."""
    rebound = row.rebound or {}
    if row.forward != row.recomputed[: len(row.forward)] or not rebound:
        return _names(row.forward), _names(row.recomputed)
    first, second = (", ".join(f"{n} = {names[side]}" for n, names in rebound.items()) for side in (0, 1))
    return f"{row.function} with {first}", f"with {second}"


def _parameter(row: Recomputed) -> str | None:
    """The parameter that backward should have used, if no module names it."""
    rebound = row.rebound or {}
    return None if row.forward else next((names[0] for names in rebound.values()), None)


def _place(row: Recomputed) -> Place | None:
    """The line that passed the function to checkpoint; else its definition."""
    file, line, function = [*row.place.rsplit(":", 2), "", ""][:3]
    if natural(line) is None:
        file, _, line = row.defined.rpartition(":")
        function = row.function
    number = natural(line)
    return locations.place(file, number, function) if number is not None else None


RULE = Rule(
    means={"silently_wrong": "The job completed, but its gradients, loss or replicas are wrong."},
    family="correctness",
    detected="Activation checkpointing recomputed other modules or parameters in backward than its forward ran, or drew other random numbers, as dropout does with `preserve_rng_state=False`",
    fix=(
        "Bind its variables when the checkpoint is created: pass the block itself, checkpoint(block, x), or write "
        "`lambda x, block=block: block(x)`; a lambda in a loop looks `block` up when backward runs it."
    ),
    check=recomputation,
    keeps="order",
    needs=("black_boxes",),
    explained_by=("async_work_not_waited",),
)

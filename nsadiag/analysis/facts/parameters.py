"""Parameters that took no part in a step, as reported by DDP and the optimizers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.documents.training import Missing, Wrap
from nsadiag.evidence.records import Place
from nsadiag.source.modules import branch_in

INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
NAMES = re.compile(r"Parameters which did not receive grad for rank \d+: ([\w., ]+)")


def unused_in(rank: RankEvidence, message: str) -> list[str]:
    """By name: DDP prints indices, and names only at TORCH_DISTRIBUTED_DEBUG=INFO or higher."""
    named = NAMES.search(message)
    if named:
        return [n.strip() for n in named[1].split(",") if n.strip()]
    indices = INDICES.search(message)
    if not indices or not rank.ddp:
        return []
    parameters = rank.ddp[-1].parameters
    return [parameters[int(i)].name for i in indices[1].split() if int(i) < len(parameters)]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the set of an optimizer's parameters without a gradient."""

    step: int
    missing: list[str]  # new ones
    used_again: list[str]


def changed_graph(rank: RankEvidence) -> Change | None:
    """The last change after the first step."""
    before: dict[int, set[str]] = {}
    found = None
    for row in rank.ungraded:
        had, now = before.get(row.optimizer, set()), set(row.missing)
        if row.step and now != had:
            missing = [name for name in row.missing if name not in had]
            found = Change(step=row.step, missing=missing, used_again=sorted(had - now))
        before[row.optimizer] = now
    return found


def without_gradient_now(rank: RankEvidence) -> tuple[list[str], int, str] | None:
    """Parameters without a gradient at the newest snapshot: names, the rank's steps so far, the file that tells.

    None where it is not known: gradients of all parameters of an optimizer are cleared together, so that none at all
    tells nothing, nor does a part where there are several optimizers, or several models.
    """
    newest = next((c for c in reversed(rank.captures) if c.ungraded), None)
    if newest is None or newest.ungraded is None or newest.ungraded.optimizers > 1:
        return None
    if len(newest.ungraded.models) != 1:
        return None
    (model,) = newest.ungraded.models
    if not 0 < model.count < model.of:
        return None
    step = newest.ungraded.step
    earlier = [row.missing for row in rank.ungraded if row.step < step - 1]
    names = [name for name in model.missing if not earlier or name not in earlier[-1]]
    return names, step, f"{newest.source}/ungraded.json"


def without_gradient(rank: RankEvidence) -> Missing | None:
    """The newest word of the rank's optimizers on who has none; None if all had one, or nothing is on record."""
    row = rank.ungraded[-1] if rank.ungraded else None
    return row if row and row.count else None


def branch_around(cell: CellEvidence, rank: RankEvidence, unused: list[str]) -> Place | None:
    """The one condition behind which all these parameters are, in the `forward` of whichever module holds them.

    None if there is none, or several, or a parameter that took part is behind it as well.
    """
    found = _model_of(rank, unused)
    if found is None:
        return None
    model, names = found
    return branch_in(cell.code, model.model, names, {parameter.name for parameter in model.parameters})


def _model_of(rank: RankEvidence, unused: list[str]) -> tuple[Wrap, list[str]] | None:
    """The wrapped model that has them all, and their names within it."""
    within = {p.full_name: p.name for model in rank.ddp for p in model.parameters}
    names = [within.get(name, name) for name in unused]
    for row in reversed(rank.wraps):
        if names and {*names} <= {parameter.name for parameter in row.parameters}:
            return row, names
    return None

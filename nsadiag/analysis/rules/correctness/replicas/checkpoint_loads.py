"""Checkpoint loads that only some ranks made before their first step."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase

OF_OPTIMIZER = "optimizer.load_state_dict"


@dataclass(frozen=True, kw_only=True)
class Loads:
    """A load function, and the ranks that called it."""

    op: str
    by: tuple[int, ...]
    place: Place | None  # of the call


def uneven_load(case: Case, *, before_wrap: bool = False, wraps: int = 1) -> Loads | None:
    """The first load that only some ranks made between the nth wrap and the next step.

    `before_wrap`: also before the wrap, since the step before it. DDP copies the loaded model, but not the optimizer's
    state.
    """
    calls: dict[str, dict[int, str]] = {}
    for rank in case.cell.ranks:
        mine = case.events_of(rank.rank)
        kinds = mine.kind.tolist()
        made = [n for n, (kind, phase) in enumerate(zip(kinds, mine.phase, strict=True)) if kind == Kind.WRAP and phase == Phase.BEGIN]  # fmt: skip
        wrap = made[min(wraps, len(made)) - 1] if made else len(kinds)
        if Kind.STEP not in kinds[wrap:]:
            continue
        steps = [n for n, kind in enumerate(kinds[:wrap]) if kind == Kind.STEP]
        since = wrap if not before_wrap else steps[-1] if steps else 0
        between = mine.iloc[since : kinds.index(Kind.STEP, wrap)]
        loads = between[
            (between.kind == Kind.IO)
            & (between.phase == Phase.BEGIN)
            & between.name.str.contains("load", regex=False)
        ]
        for name, site in zip(loads.name, loads.site, strict=True):
            calls.setdefault(str(name).partition(" ")[0], {})[rank.rank] = str(site)
    for op, by in calls.items():
        if len(by) < len(case.cell.ranks):
            at = locations.of_text(next(iter(by.values())))
            return Loads(op=op, by=tuple(sorted(by)), place=at)
    return None

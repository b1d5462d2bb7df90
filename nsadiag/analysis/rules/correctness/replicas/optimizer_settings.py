"""The first optimizer hyperparameter that differs between ranks, and the line that sets it."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.relations.invariants.operations import steps_of
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Place
from nsadiag.source.patterns.rank_conditions import setting_of_rank, write_on_one_rank
from nsadiag.source.patterns.single_call import scheduler_step


@dataclass(frozen=True, kw_only=True)
class DifferingSetting:
    """A hyperparameter that differs between ranks."""

    setting: str
    values: dict[int, str]
    step: int
    place: Place | None

    @property
    def ranks(self) -> tuple[int, ...]:
        return outlier_ranks(self.values)

    @property
    def says(self) -> str:
        return ", ".join(f"{value} on rank {rank}" for rank, value in list(self.values.items())[:8])


def differing_setting(case: Case) -> DifferingSetting | None:
    """The first difference, at the first step that has one."""
    for step in steps_of(case):
        for steps in zip(*step.of("step").values(), strict=False):
            if found := _first_apart(dict(zip(step.ranks, steps, strict=True))):
                setting, values = found
                # A value that is equal at first and differs later was changed by a scheduler.
                place = setting_of_rank(case.cell.code, setting) or write_on_one_rank(case.cell.code)
                scheduled = scheduler_step(case.cell.code) if setting == "lr" and step.number else None
                at = place or scheduled or locations.of_text(steps[0].place)
                return DifferingSetting(setting=setting, values=values, step=step.number, place=at)
    return None


def _first_apart(steps: dict[int, Operation]) -> tuple[str, dict[int, str]] | None:
    each = {rank: [dict(_pairs(text)) for text in o.settings] for rank, o in steps.items()}
    for groups in zip(*each.values(), strict=False):
        for setting in groups[0]:
            values = {rank: group.get(setting, "") for rank, group in zip(each, groups, strict=True)}
            if len(set(values.values())) > 1:
                return setting, values
    return None


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for word in text.split(" ") for name, _, value in [word.partition("=")] if value]

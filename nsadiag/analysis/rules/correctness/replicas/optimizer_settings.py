"""The first optimizer hyperparameter that differs between ranks, and the line that sets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.relations.invariants.operations import settings_of, source, steps_of
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Place
from nsadiag.source.patterns.rank_conditions import setting_of_rank, write_on_one_rank
from nsadiag.source.patterns.single_call import metric_step, only_item_write, scheduler_step


@dataclass(frozen=True, kw_only=True)
class DifferingSetting:
    """A hyperparameter that differs between ranks."""

    setting: str
    values: dict[int, str]
    ranks: tuple[int, ...]  # whose value is another than that of most
    step: int
    place: Place | None
    source: str

    @property
    def says(self) -> str:
        return ", ".join(f"{value} on rank {rank}" for rank, value in list(self.values.items())[:8])


def differing_setting(case: Case) -> DifferingSetting | None:
    """The first difference, as steps were observed."""
    found = next(_observed(case), None)
    if found is None:
        return None
    scheduled = _scheduled(case, found.step) if found.setting == "lr" and found.step else None
    written = setting_of_rank(case.cell.code, found.setting) or write_on_one_rank(case.cell.code)
    later = only_item_write(case.cell.code, found.setting) if found.step else None
    return replace(found, place=written or scheduled or later or found.place)


def _scheduled(case: Case, step: int) -> Place | None:
    """The line of the scheduler that changed a rate which was equal at first: from the second step on, the one that made it."""
    code = case.cell.code
    return metric_step(code) or (_made(case) if step == 1 else None) or scheduler_step(code)


def _made(case: Case) -> Place | None:
    rows = case.cell.ranks[0].observed
    made = {
        o.place for row in rows for o in row.operations if (o.kind, o.of_state) == ("create", "scheduler")
    }
    return locations.of_text(made.pop()) if len(made) == 1 else None


def _observed(case: Case) -> Iterator[DifferingSetting]:
    for step in steps_of(case):
        for steps in zip(*step.of("step").values(), strict=False):
            # Where one rank tries something out by itself, its first steps are not those that its peers make.
            if len({each.place for each in steps}) > 1:
                continue
            for setting, values in _apart(dict(zip(step.ranks, steps, strict=True))):
                at = locations.of_text(steps[0].place)
                odd = outlier_ranks(values, case.cell.weight)
                yield DifferingSetting(
                    setting=setting, values=values, ranks=odd, step=step.number, place=at, source=source(case)
                )


def _apart(steps: dict[int, Operation]) -> Iterator[tuple[str, dict[int, str]]]:
    each = {rank: settings_of(o) for rank, o in steps.items()}
    for groups in zip(*each.values(), strict=False):
        for setting in groups[0]:
            values = {rank: group.get(setting, "") for rank, group in zip(each, groups, strict=True)}
            if len(set(values.values())) > 1:
                yield setting, values

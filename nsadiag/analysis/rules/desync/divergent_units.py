"""FSDP units that differ between ranks in one collective: where their sizes match, ranks compute with a mixture of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.outliers import outlier_ranks
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import named, recorder_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.records import Outcome, Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.modules import branch_in

GATHERS = "unshard "
PASSES = (Kind.FORWARD, Kind.BACKWARD)
OF_FSDP2 = "FSDP"  # prefix of the class that was passed to fully_shard


@dataclass(frozen=True, kw_only=True)
class GatheredUnit:
    """A collective of one rank, and the unit that it gathered."""

    group: str
    number: int
    unit: str
    step: int
    began: tuple[int, int]  # the kind of pass, forward or backward, and its first collective


def divergent_units(case: Case) -> Iterator[Draft | Declined]:
    gathered = differing_units(case)
    if not gathered:
        yield Declined(
            "no two ranks gathered different FSDP units in one collective"
            if any(rank.units for rank in case.cell.ranks)
            else "no rank has FSDP units"
        )
        return
    guilty = outlier_ranks({rank: each.unit for rank, each in gathered.items()}, case.cell.weight)
    first = gathered[guilty[0]]
    by_unit: dict[str, list[int]] = {}
    for rank, each in sorted(gathered.items()):
        by_unit.setdefault(each.unit, []).append(rank)
    ran = " and ".join(f"{unit} on {named(case.cell, ranks)}" for unit, ranks in sorted(by_unit.items()))
    yield Draft(
        outcome=_outcome(case),
        strength=Strength.STRONG,
        summary=f"The ranks ran different FSDP units in step {first.step}: {call_name('collective', first.number, first.group)} gathers {ran}, and mixes them.",
        guilty_ranks=guilty,
        blocked_ranks=tuple(sorted(set(gathered) - set(guilty))),
        at=_condition(case, gathered),
        where=Where(module=first.unit, step=first.step),
        evidence={
            f"{named(case.cell, ranks)} gathered {unit} in {call_name('collective', first.number, first.group)}": recorder_of(
                case.cell, ranks[0]
            )
            for unit, ranks in sorted(by_unit.items())
        },
    )


def _outcome(case: Case) -> Outcome:
    if is_still(case.cell) or case.cell.stopped == "hang":
        return "hung"
    return "crashed" if any(b.kind != "exited" for b in breaks(case.cell)) else "wrong"


def differing_units(case: Case) -> dict[int, GatheredUnit]:
    """By rank, what it gathered in the earliest collective in which units differ; empty if there is none.

    Ranks that share the same units are compared, within one pass and one thread: an additional forward, or another thread's
    call in between, also shifts the numbers.
    """
    sharing: dict[object, list[RankEvidence]] = {}
    for rank in case.cell.ranks:
        if shared := tuple((unit.unit, unit.ranks) for unit in rank.units):
            sharing.setdefault(shared, []).append(rank)
    for ranks in sharing.values():
        gathered = {r.rank: {(g.group, g.number): g for g in _gathered(case, r.rank)} for r in ranks}
        for key in next(iter(gathered.values())) if len(ranks) > 1 else ():
            by_rank = {rank: each[key] for rank, each in gathered.items() if key in each}
            if len({g.unit for g in by_rank.values()}) > 1:
                if len({g.began for g in by_rank.values()}) > 1 or _has_other_threads(case, by_rank):
                    break
                return by_rank
    return {}


def _has_other_threads(case: Case, by_rank: dict[int, GatheredUnit]) -> bool:
    """Whether several threads of a rank issued the group's collectives between the start of the pass and this one."""
    asked = case.asked
    for rank, one in by_rank.items():
        mine = asked[(asked["rank"] == rank) & (asked.group == case.groups.label(rank, one.group))]
        if mine[(mine.call >= one.began[1]) & (mine.call <= one.number)].thread.nunique() > 1:
            return True
    return False


def _gathered(case: Case, rank: int) -> Iterator[GatheredUnit]:
    """The first collective of each unit that was gathered, in order, from the first pass whose start is recorded."""
    mine = case.events_of(rank, *PASSES, Kind.UNIT, Kind.COLLECTIVE)
    unit, pass_, began = "", 0, (0, 0)
    for kind, phase, name, number, step, group in mine[["kind", "phase", "name", "a", "step", "group"]].itertuples():  # fmt: skip
        if kind in PASSES:
            pass_ = int(kind) if phase == Phase.BEGIN else pass_
        elif kind == Kind.UNIT:
            unit = name.removeprefix(GATHERS) if phase == Phase.BEGIN and name.startswith(GATHERS) else ""
        elif unit and phase == Phase.BEGIN and "all_gather" in name:
            began, pass_ = (pass_, int(number)) if pass_ else began, 0
            if began[0]:
                yield GatheredUnit(group=group, number=int(number), unit=unit, step=int(step), began=began)
            unit = ""


def _condition(case: Case, by_rank: dict[int, GatheredUnit]) -> Place | None:
    """The condition on which all units depend that one rank ran in that step and another did not."""
    ran = [{g.unit for g in _gathered(case, r) if g.step == each.step} for r, each in by_rank.items()]
    left_out = sorted(set[str]().union(*ran) - ran[0].intersection(*ran[1:]))
    names = {u.unit: [p.name for p in u.parameters] for u in case.cell.rank(next(iter(by_rank))).units}
    root = next((name for name in names if name.startswith(OF_FSDP2)), None)
    unused = [name for unit in left_out for name in names.get(unit, [])]
    if root is None or not unused:
        return None
    known = {name for each in names.values() for name in each}
    return branch_in(case.cell.code, root.removeprefix(OF_FSDP2), unused, known)


RULE = Rule(
    concludes=("divergent_module_execution",),
    family="divergence",
    detected="FSDP units of different modules were gathered in the same collective. Where their sizes match, the job completes with a mixture of both, and the outcome is `wrong`.",
    fix="Run the same modules on every rank: draw the layers to drop from a generator with the same seed on all ranks, and run unused experts with empty or masked input.",
    check=divergent_units,
    needs=("black_boxes",),
    explained_by=("data_divergent_control_flow", "rank_conditional_collective", "uneven_inputs"),
    confused_with=("data_divergent_control_flow", "collective_order_mismatch", "collective_args_mismatch"),
)

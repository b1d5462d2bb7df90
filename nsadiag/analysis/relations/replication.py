"""Jobs whose ranks hold one model, jobs whose ranks hold parts of it, and gradients that a job averages by itself."""

from __future__ import annotations

from collections import Counter

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.invariants.operations import reduced_names
from nsadiag.analysis.relations.replica_sums import summed
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table

DEFAULT = "default_pg"
WAIT = "work.wait"  # for a call that is not known


def is_replicated(cell: CellEvidence) -> bool:
    """Whether DDP wraps a model on each rank, and always over all ranks."""
    return all(r.ddp and all(len(m.ranks) == cell.world_size for m in r.ddp) for r in cell.ranks)


def has_parts(case: Case) -> bool:
    """Whether ranks divide a model or a batch: experts, shards and stages use groups or exchanges of their own."""
    calls = case.events[case.events.kind == Kind.COLLECTIVE]
    if any(rank.ddp for rank in case.cell.ranks):
        # Its own waits, of calls that nobody saw: a rehearsed group shows them.
        calls = calls[calls.name != WAIT]
    # Where FSDP shards over all ranks, its mesh may have a group of its own.
    units = [unit for rank in case.cell.ranks for unit in rank.units]
    sharded = [unit.group for unit in units if len(unit.ranks) == case.cell.world_size]
    others = ~calls.group.str.startswith(DEFAULT) & ~calls.group.isin(sharded)
    apart = others & ((calls.group != "") | (calls.site != ""))
    return bool(apart.any() or calls.name.str.contains("all_to_all|send|recv").any())


def wrapped_at(case: Case) -> str:
    """The line of the last wrap in DDP; empty where none is known."""
    wraps = case.events[(case.events.kind == Kind.WRAP) & (case.events.site != "")]
    return str(wraps.site.iloc[-1]) if len(wraps) else ""


def wrapped_at_other_steps(case: Case) -> bool:
    """Whether ranks made different numbers of steps before the wrap: equal numbers then mean different steps."""
    return bool(case.begun(Kind.WRAP).groupby("rank").step.min().nunique() > 1)


FEW = 16  # numbers, of which losses and metrics have no more
MOST_STEPS = 0.8  # in which gradients were averaged, for it to be what the job means to do
REDUCTIONS = ("all_reduce", "all_reduce_coalesced")


def averaged(case: Case) -> tuple[frozenset[str], Place | None]:
    """Parameters whose gradients all ranks reduce behind nearly every backward, and the line that does it."""
    sizes = summed(case.cell)
    names: set[str] | None = None
    at: Counter[str] = Counter()
    for rank in case.cell.ranks:
        mine = case.events_of(rank.rank)
        steps = int((mine.kind == Kind.STEP).sum())
        reduced = _behind_backward(mine)
        for row in reduced:
            at[row[2]] += 1
        # Parameters of one size are told apart by nothing: of each size at most one a step counts.
        counts = Counter(elements for _, elements in {(after, elements) for after, elements, _ in reduced})
        often = {e for e, n in counts.items() if n >= MOST_STEPS * max(steps, 1)}
        # in buckets, as many as there are: without losses and counts beside them
        together: Counter[int] = Counter()
        for after, elements, _ in reduced:
            together[after] += elements if elements > FEW else 0
        in_buckets = sum(total == sizes.get("", 0) for total in together.values())
        whole = sizes.get("", 0) in often or in_buckets >= MOST_STEPS * max(steps, 1)
        here = {n for n, e in sizes.items() if n and (whole or e in often)}
        names = here if names is None else names & here
    # Of one size are several; where they lie in memory, which is looked at in some steps, tells them apart.
    seen = reduced_names(case)
    if names and seen:
        names &= seen
    line = at.most_common(1)[0][0] if at else ""
    return frozenset(names or ()), locations.of_text(line)


def are_most(cell: CellEvidence, names: frozenset[str]) -> bool:
    """Whether that is the better part of what was compared: a loss that is reduced has the size of a temperature."""
    sizes = summed(cell)
    sizes.pop("", None)
    return bool(names) and 2 * sum(sizes[name] for name in names) >= sum(sizes.values())


def _behind_backward(events: Table) -> list[tuple[int, int, str]]:
    """Reductions of the whole group between a backward's end and what follows, as steps before, elements and call site.

    What follows is the next forward, or the optimizer: what is averaged when that is done are the models themselves, as
    in local SGD, which keeps replicas equal by other means.
    """
    found = []
    behind, steps = False, 0
    wanted = events[
        events.kind.isin((Kind.BACKWARD, Kind.FORWARD, Kind.OPTIMIZER, Kind.STEP, Kind.COLLECTIVE))
    ]
    for kind, phase, name, elements, group, site in wanted[
        ["kind", "phase", "name", "b", "group", "site"]
    ].itertuples():
        steps += kind == Kind.STEP
        if kind == Kind.BACKWARD:
            behind = phase == Phase.END
        elif kind in (Kind.FORWARD, Kind.OPTIMIZER):
            behind = False
        elif behind and phase == Phase.BEGIN and name in REDUCTIONS and group.startswith(DEFAULT):
            found.append((steps, int(elements), str(site)))
    return found

"""Jobs whose ranks hold one model, and jobs whose ranks hold parts of it."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.ring.blackbox import Kind, Phase

DEFAULT = "default_pg"


def is_replicated(cell: CellEvidence) -> bool:
    """Whether DDP wraps a model on each rank, and always over all ranks."""
    return all(r.ddp and all(len(m.ranks) == cell.world_size for m in r.ddp) for r in cell.ranks)


def has_parts(case: Case) -> bool:
    """Whether ranks divide a model or a batch: experts, shards and stages use groups or exchanges of their own."""
    calls = case.events[case.events.kind == Kind.COLLECTIVE]
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
    wraps = case.events[(case.events.kind == Kind.WRAP) & (case.events.phase == Phase.BEGIN)]
    return bool(wraps.groupby("rank").step.min().nunique() > 1)

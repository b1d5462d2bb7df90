"""Hosts of a job that runs on several, and those of them that were lost."""

from __future__ import annotations

from nsadiag.analysis.records import CellEvidence


def hosts_of(cell: CellEvidence) -> dict[int, str]:
    """By rank; empty where all are on one host."""
    found = {rank.rank: rank.meta.host for rank in cell.ranks if rank.meta.host}
    return found if len({*found.values()} | {*lost_hosts(cell)}) > 1 else {}


def lost_hosts(cell: CellEvidence) -> dict[str, float]:
    """Nodes that were lost while the job ran, and when."""
    return {node.name: node.lost_s for node in cell.watch.nodes if node.lost_s is not None}

"""The verdict on a stalled job whose ranks wait for another role of it: `nsadiag run` of a wrapper that starts several launchers.

What was seen of all roles lies in a folder of the run directory that is one by itself, as `nsadiag attach` leaves it. Ranks that
are recorded have the same numbers in both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_run
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.actors.stuck import job_of, outside, patient_graph, stands_in
from nsadiag.evidence.records import Evidence, Rejected, Verdict

FOLDER = "roles"
DOCUMENT = "roles.json"
Said = TypeVar("Said", Evidence, Rejected)


def told_of_roles(
    directory: Path, recorded: Collection[int], judge: Callable[[CellEvidence], Verdict]
) -> Verdict | None:
    """The verdict on all roles; None where nothing was seen of them, or ranks are held up by ranks alone.

    `recorded` are the numbers of the ranks, of whom more is known than of other processes.
    """
    folder = directory / FOLDER
    if not (folder / DOCUMENT).is_file():
        return None
    cell = load_run(folder)
    if not Case(cell).once(stands_in).rows:
        return None  # nobody's stack could be had: ranks answer for themselves
    verdict = judge(cell)
    # Of who holds up the rest, if that is known: the rest may wait for a thread that has gone another way.
    ours = verdict.guilty and verdict.guilty <= set(recorded)
    reached = _reached(cell, verdict.guilty_ranks if ours else recorded)
    return _seen_from(directory, verdict) if reached - set(recorded) else None


def of_all_roles(
    directory: Path, cell: CellEvidence, verdict: Verdict, judge: Callable[[CellEvidence], Verdict]
) -> Verdict:
    """The verdict on a run, given the one on its ranks alone."""
    # Each look that finds the ranks still or asleep looks at the roles anew.
    if not cell.watch.looks or cell.watch.looks[-1].judgement != "still":
        return verdict
    found = told_of_roles(directory, [rank.rank for rank in cell.ranks], judge)
    if found is None or found.outcome != "hung":
        return verdict
    return dataclasses.replace(found, progress=verdict.progress, times=verdict.times)


def is_of_roles(verdict: Verdict) -> bool:
    """True of a verdict on a run that is one on all of its roles."""
    return any(each.source.startswith(f"{FOLDER}/") for each in verdict.evidence)


def _reached(cell: CellEvidence, waiting: Collection[int]) -> set[int]:
    """These, and the processes for which they wait, if only by way of others; all, if one waits for nobody knows whom."""
    case = Case(cell)
    graph, stands = case.once(patient_graph), case.once(stands_in)
    unknown = {stand.number for stand in outside(case)} | set(stands.blind)
    unknown |= set(waiting) - {stand.number for stand in stands.rows}
    if unknown & set(waiting):
        return set(case.once(job_of).processes)
    own = [key for key, node in graph.nodes.items() if node.number in waiting]
    return {graph.nodes[key].number for key in {*own}.union(*map(graph.reached_from, own))}


def _seen_from(directory: Path, verdict: Verdict) -> Verdict:
    """The same with paths as they are below the directory of the run."""
    return dataclasses.replace(
        verdict,
        evidence=tuple(_below(directory, each) for each in verdict.evidence),
        rejected=tuple(_below(directory, each) for each in verdict.rejected),
    )


def _below(directory: Path, said: Said) -> Said:
    path = (said.source or "").partition("#")[0]
    if path and (directory / FOLDER / path).exists():
        return dataclasses.replace(said, source=f"{FOLDER}/{said.source}")
    return said

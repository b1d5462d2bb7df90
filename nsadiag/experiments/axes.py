"""The simplest cell of a matrix that still fails in the same way: factors first, the script after."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from nsadiag.evidence.records import Verdict
from nsadiag.experiments.trial import Job, Pace, Slots, Trial, Wanted, waited_for
from nsadiag.spec import Cell, Matrix

NUMBER = re.compile(r"\d+")


def simplest(
    matrix: Matrix,
    factors: Mapping[str, str],
    job: Job,
    verdict: Verdict,
    slots: Slots,
    folder: Path,
    *,
    note: Callable[[str], None],
) -> tuple[Job, Verdict, list[str]]:
    """Goes along one axis after the other to its smallest, or first, value that keeps the failure.

    Returns the job, its verdict, and what was changed, in words.
    """
    cells = {tuple(sorted(c.factors.items())): c for c in matrix.cells()}
    now = {name: value for name, value in factors.items() if name != "repeat"}
    wanted, changed = loosely(Wanted.of(verdict)), []
    pace = Pace(stall_after_s=matrix.stall_after_s, timeout_s=matrix.timeout_s, probes=matrix.probes)
    count = 0
    for name, axis in matrix.axes.items():
        for value in simpler(axis.labels(), now.get(name, "")):
            cell = cells.get(tuple(sorted({**now, name: value}.items())))
            if cell is None:
                continue
            count += 1
            trial = waited_for(slots.submit(_job(cell, job), folder / f"{count:04d}", pace))
            same = loosely(Wanted.of(trial.verdict)) == wanted
            note(f"{name}={value}: {'same' if same else _said(trial)}")
            if same:
                changed.append(f"{name} {now[name]} became {value}")
                now, job, verdict = {**now, name: value}, _job(cell, job), trial.verdict
                break
    return job, verdict, changed


def _job(cell: Cell, like: Job) -> Job:
    return dataclasses.replace(like, argv=tuple(cell.argv), world_size=cell.world_size, env=cell.env)


def _said(trial: Trial) -> str:
    return f"{trial.verdict.outcome} ({trial.verdict.cls})"


def simpler(values: list[str], present: str) -> list[str]:
    """The values to try instead, the simplest first: numbers by size, others in the order of the spec."""
    try:
        ordered = sorted(values, key=float)
    except ValueError:
        ordered = values
    return ordered[: ordered.index(present)] if present in ordered else []


def loosely(wanted: Wanted) -> Wanted:
    """With fewer layers or ranks, numbers in a parameter's name change, and which ranks there are."""
    return dataclasses.replace(
        wanted,
        outcome="",
        parameter=NUMBER.sub("N", wanted.parameter) if wanted.parameter else None,
        guilty_ranks=(),
    )

"""A loader's worker that computes and gives no batch: only time, and a call that does not return, tell one that is stuck from work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.findings import findings
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CaptureEvidence, CellEvidence
from nsadiag.analysis.rules.blocked.dataloader_worker_fault import dataloader_worker_fault
from nsadiag.evidence.documents.captures import Answer, Answers
from nsadiag.evidence.documents.watch import Look, RankMotion


def called(number: int) -> list[list[str]]:
    """Of the recording: torch's fetcher calls the data set with an index, and what that calls is another thing at each look."""
    return [
        *(["fetch.py", "fetch", "f0"],) * 2,
        ["data.py", "__getitem__", "i7"],
        ["data.py", "decode", f"{number}"],
    ]


def silence(folder: Path, looks: int = 4, silent_s: float = 130.0, **worker: Any) -> CellEvidence:
    """The job of the recording at --timeout, with a worker that runs at its line in all looks."""
    cell = load_cell(unpack(archive_of("dataloader_worker_fault_fork_lock"), folder).path)
    motions = tuple(RankMotion(rank=rank, seconds=2.0) for rank in range(2))
    pairs = tuple(
        Look(t_s=20.0 + 20 * n, first=2 * n + 1, second=2 * n + 2, judgement="busy", motions=motions)
        for n in range(looks // 2)
    )
    watch = dataclasses.replace(
        cell.watch, stopped="timeout", looks=pairs, last_progress_s=10.0, ending_s=10.0 + silent_s,
        longest_quiet_s=1.0,
    )  # fmt: skip
    ranks = [
        dataclasses.replace(r, captures=tuple(_look(r.captures[-1], n + 1, **worker) for n in range(looks)))
        for r in cell.ranks
    ]
    return dataclasses.replace(cell, watch=watch, ranks=tuple(ranks))


def _look(
    capture: CaptureEvidence,
    number: int,
    *,
    calls: Callable[[int], list[list[str]]] = called,
) -> CaptureEvidence:
    children = tuple(
        dataclasses.replace(c, proc=dataclasses.replace(c.proc, state="R")) for c in capture.children
    )
    told = Answer(
        answered=True,
        calls={str(c.number): tuple(map(tuple, calls(number))) for c in children},
    )
    answers = Answers(sources={"workers": told})
    return dataclasses.replace(capture, number=number, children=children, answers=answers)


def judged(cell: CellEvidence) -> list[tuple[int, ...]]:
    return [f.guilty_ranks for f in findings(dataloader_worker_fault, Case(cell))]


@pytest.mark.parametrize(("last_progress_s", "found"), [(10.0, [(1,)]), (60.0, [])])
def test_a_person_who_gives_it_up_is_told_what_was_seen_of_the_silence(
    tmp_path: Path, last_progress_s: float, found: list[tuple[int, ...]]
) -> None:
    """The last look was at 40 s: what has moved since then is no silence that anybody looked at."""
    cell = silence(tmp_path)
    watch = dataclasses.replace(cell.watch, stopped="interrupt", last_progress_s=last_progress_s)
    assert judged(dataclasses.replace(cell, watch=watch)) == found


def test_a_worker_that_goes_on_to_other_values_within_one_call_is_stuck(tmp_path: Path) -> None:
    """A rejection that never accepts draws anew each time: its arguments stay."""
    cell = silence(tmp_path)
    (found,) = findings(dataloader_worker_fault, Case(cell))
    assert (found.guilty_ranks, found.outcome, found.confidence) == ((1,), "hung", 0.6)
    assert (
        "has been in one call at" in found.summary
        and found.where.line == 39
        and "with the same arguments" in found.evidence[1].claim
    )


@pytest.mark.parametrize(
    "another",
    [
        {"calls": lambda n: [["fetch.py", "fetch", f"f{n}"]]},  # another batch
        {"silent_s": 15.0},  # no longer than a pause may be
        {"looks": 2},
        {"calls": lambda n: called(n) if n != 2 else []},  # not seen, or did not run
    ],
)
def test_a_worker_that_may_be_in_one_call_after_the_other_is_left_alone(
    tmp_path: Path, another: dict[str, Any]
) -> None:
    assert judged(silence(tmp_path, **another)) == []

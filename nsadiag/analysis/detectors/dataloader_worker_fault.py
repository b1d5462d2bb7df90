"""A worker of torch's DataLoader is dead or stuck: the rank waits for its batch, and the peers for the rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.breaks import first_break
from nsadiag.analysis.exceptions import LOST_WORKER, first_of
from nsadiag.analysis.inside import Stuck, finding, stuck_inside
from nsadiag.analysis.load import CaptureEvidence, CellEvidence
from nsadiag.analysis.standing import main_thread
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Place, Rejected, Where

LATE = re.compile(r"DataLoader timed out after \d+ seconds")
FIX = "Look at what the dataset does at the line shown; give the loader a timeout=, and start workers by spawn or forkserver where locks or threads are around."


def _worker(stuck: Stuck) -> tuple[CaptureEvidence, Place] | None:
    """The worker that stands in the user's own code, and where. One that waits for orders has none on its stack."""
    for child in stuck.capture.children:
        main = main_thread(child)
        in_loop = any(f["filename"].endswith("_utils/worker.py") for f in main.get("frames", []))
        at = places.of_frames(_above_worker(main.get("frames", []))) if in_loop else None
        if at:
            return child, at
    return None


def _above_worker(frames: list[dict[str, object]]) -> list[dict[str, object]]:
    """The frames that the worker's loop has called: below it stand those that forked it."""
    for number, frame in enumerate(frames):
        if str(frame["filename"]).endswith("_utils/worker.py"):
            return frames[:number]
    return []


def _gone(stuck: Stuck) -> list[int]:
    """Workers of the loaders that the kernel no longer lists, or lists as dead."""
    known = {pid for loader in stuck.rank.loaders[-1:] for pid in loader.get("workers", [])}
    living = {c["pid"] for c in stuck.capture.proc.get("children", []) if c.get("state") != "Z"}
    return sorted(known - living)


def dataloader_worker_fault(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    yield from _raised(cell)
    for stuck in stuck_inside(cell, tables):
        if stuck.standing.doing != "loader":
            continue
        worker, gone = _worker(stuck), _gone(stuck)
        if worker:
            yield _stuck(cell, stuck, *worker)
        elif gone:
            yield _dead(cell, stuck, gone)


def _waits(stuck: Stuck) -> Evidence:
    at = f" at {places.short(stuck.standing.place)}" if stuck.standing.place else ""
    return Evidence(
        claim=f"rank {stuck.number} waits in its DataLoader{at}, in both looks", source=stuck.source
    )


def _rejected(number: int, *, locked: bool = False) -> tuple[Rejected, ...]:
    idle = "neither the rank nor any of its workers used the machine meanwhile"
    return (
        Rejected(cls="straggler_rank", because="nothing can wake the worker" if locked else idle),
        Rejected(cls="uneven_inputs", because=f"rank {number} asks for a batch: it has not come to its end"),
    )


def _locked(stuck: Stuck, worker: CaptureEvidence) -> tuple[Evidence, ...]:
    """Where the kernel shows all of its threads at locks of its own memory."""
    rows = [c for c in stuck.capture.proc.get("children", []) if c["pid"] == worker.number]
    if not any(row.get("locked_for_good") for row in rows):
        return ()
    claim = "no thread is left in the worker that could release the lock: one of the rank's held it at the fork, or it holds it itself"
    return (Evidence(claim=claim, source=f"{stuck.capture.source}/proc.json"),)


def _stuck(cell: CellEvidence, stuck: Stuck, worker: CaptureEvidence, at: Place) -> Finding:
    state, locked = worker.proc.get("state"), _locked(stuck, worker)
    held = " It waits for a lock that no thread of it is left to release." if locked else ""
    return finding(
        cell,
        stuck,
        cls="dataloader_worker_fault",
        confidence=0.93,
        summary=f"A DataLoader worker of rank {stuck.number} (pid {worker.number}) stands at {places.short(at)} and gives no batch.{held}",
        at=at,
        evidence=(
            _waits(stuck),
            Evidence(
                claim=f"its worker {worker.number} is in the dataset's code at {places.short(at)} (state {state})",
                source=f"{worker.source}/py_spy.json",
            ),
            *locked,
        ),
        rejected=_rejected(stuck.number, locked=bool(locked)),
        fix=FIX,
    )


def _dead(cell: CellEvidence, stuck: Stuck, gone: list[int]) -> Finding:
    return finding(
        cell,
        stuck,
        cls="dataloader_worker_fault",
        confidence=0.85,
        summary=f"Rank {stuck.number} waits for DataLoader worker {', '.join(map(str, gone))}, which is dead.",
        evidence=(
            _waits(stuck),
            Evidence(
                claim=f"of its workers {', '.join(map(str, gone))} no longer lives",
                source=f"{stuck.rank.source}/loaders.json",
            ),
        ),
        rejected=_rejected(stuck.number),
        fix="Find what ended the worker (dmesg shows the kernel's memory killer): fewer workers, or less memory in each.",
    )


def _raised(cell: CellEvidence) -> Iterator[Finding]:
    """torch noticed it, and raised in the rank's loop, at whatever line that happened to be."""
    first = first_break(cell)
    raised = first.rank.exception if first and first.kind == "exception" else None
    if first is None or raised is None:
        return
    exception = first_of(raised)
    said = LOST_WORKER.search(exception["message"])
    late = LATE.search(exception["message"])
    if not said and not late:
        return
    number = first.rank.rank
    how = said["end"] if said else "gave no batch in the loader's time"
    yield Finding(
        detector="dataloader_worker_fault",
        cls="dataloader_worker_fault",
        outcome="hung" if cell.stopped == "hang" else "crashed",
        confidence=0.93,
        summary=f"A DataLoader worker of rank {number} {how}; the loader raised in the rank.",
        guilty_ranks=(number,),
        blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank != number),
        where=Where(step=first.rank.end.get("steps")).at(
            places.of_exception(exception) or places.of_exception(raised)
        ),
        evidence=(
            Evidence(
                claim=f"rank {number} raised at {first.t_s:.1f} s, first of all: {exception['message'].splitlines()[0][:200]}",
                source=f"{first.rank.source}/exception.json",
            ),
        ),
        rejected=(
            Rejected(cls="rank_exception", because="the exception only passes on how a worker ended"),
            Rejected(cls="rank_killed", because=f"it was a worker that ended, not rank {number} itself"),
        ),
        fix="Find what ended the worker: dmesg shows the kernel's memory killer; `num_workers=0` shows an exception where it happens.",
    )

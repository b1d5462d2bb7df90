"""A DataLoader worker that is dead or stuck: the rank waits for its batch, and the peers wait for the rank."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import LOST_WORKER, first_of
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.facts.quiet_time import in_one_place_s, in_silence
from nsadiag.analysis.facts.texts.error_causes import ErrorCause, cause_in
from nsadiag.analysis.records import CaptureEvidence, CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks, hung_ranks
from nsadiag.analysis.relations.pending import was_given_up
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.exits.exception_advice import OF_A_WORKER, OF_ITS_OWN_EXIT
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.records import Act, Place, Strength
from nsadiag.evidence.ring.blackbox import Kind

LEAST_LOOKS = 4  # two pairs: a single pair may show one slow sample
KILLED = re.compile(r"signal", re.IGNORECASE)
LATE = re.compile(r"DataLoader timed out after \d+ seconds")


def dataloader_worker_fault(case: Case) -> Iterator[Draft | Declined]:
    yield from _raised(case)
    for blocked in hung_ranks(case):
        if blocked.state.doing == "loader":
            # An idle worker has no user code on its stack.
            places = ((child, locations.of_frames(_in_dataset(child))) for child in blocked.capture.children)
            yield from (_stuck_worker(case.cell, blocked, child, at) for child, at in places if at)
    for blocked in blocked_ranks(case) if was_given_up(case.cell) else ():
        lasted = in_one_place_s(case.cell, blocked.rank) if blocked.state.doing == "loader" else 0.0
        if lasted and (in_call := _in_one_call(case.cell, blocked)):
            yield _busy_worker(case.cell, blocked, *in_call, lasted)
    yield from blocked_elsewhere(case, ("loader",), "does not wait for its DataLoader")


def _in_dataset(child: CaptureEvidence) -> tuple[StackFrame, ...]:
    """The frames that the worker's loop has called; those below it belong to the process that forked it."""
    files = [frame.filename.endswith("_utils/worker.py") for frame in child.main_frames]
    return child.main_frames[: files.index(True)] if True in files else ()


def _in_one_call(cell: CellEvidence, blocked: BlockedRank) -> tuple[CaptureEvidence, Place] | None:
    """The worker that ran in the same call in every snapshot of the silence, at whatever line of it."""
    looks = in_silence(cell, blocked.rank)
    for child in looks[-1].children if len(looks) >= LEAST_LOOKS else ():
        calls = [_calls(look, child.number) for look in looks]
        shared = itertools.takewhile(lambda call: len(set(call)) == 1, zip(*calls, strict=False))
        depth = sum(1 for _ in shared)
        seen = [at for look in looks if depth and (at := _at_depth(look, child.number, depth))]
        if len(seen) == len(looks) and len({(at.file, at.function) for at in seen}) == 1:
            return child, _loop(cell, seen) or seen[-1]
    return None


def _calls(look: CaptureEvidence, pid: int) -> list[tuple[str, ...]]:
    """The worker's calls below the loader's loop, outermost first, each with a digest of its arguments."""
    return list((look.answers.of("workers").calls or {}).get(str(pid), ()))


def _at_depth(look: CaptureEvidence, pid: int, depth: int) -> Place | None:
    """The innermost user line of the worker's outermost `depth` calls."""
    frames = next((_in_dataset(c) for c in look.children if c.number == pid), ())
    return locations.of_frames(frames[max(len(frames) - depth, 0) :])


def _loop(cell: CellEvidence, seen: list[Place]) -> Place | None:
    """The innermost loop around all of these lines of a function."""
    around = [file.loops_around(at.line) for at in seen if (file := cell.code.file(at.file))]
    lines = set.intersection(*({loop.lineno for loop in each} for each in around)) if around else set()
    return locations.place(seen[0].file, max(lines), seen[0].function) if lines else None


def _waiting(blocked: BlockedRank) -> Claims:
    at = at_line(blocked.state.place)
    return {
        f"rank {blocked.number} waits in its DataLoader{at}{blocked.state.in_both_snapshots}": blocked.source
    }


def _locked(blocked: BlockedRank, worker: CaptureEvidence) -> Claims:
    """Evidence that all of a worker's threads wait for locks in its own memory."""
    rows = [row for row in blocked.capture.proc.children if row.pid == worker.number]
    if not any(row.locked_for_good for row in rows):
        return {}
    claim = "no thread of the worker can release the lock: a thread of the rank held it at the fork, or the worker itself holds it"
    return {claim: f"{blocked.capture.source}/proc.json"}


def _stuck_worker(cell: CellEvidence, blocked: BlockedRank, worker: CaptureEvidence, at: Place) -> Draft:
    place, pid = at_line(at), worker.number
    in_dataset = f"its worker {pid} is in the dataset's code{place} (kernel state {worker.proc.state})"
    locked = _locked(blocked, worker)
    held = " It waits for a lock that none of its threads can release." if locked else ""
    return inside_rank(
        cell,
        blocked,
        strength=Strength.CONCLUSIVE,
        summary=f"A DataLoader worker of rank {blocked.number} (pid {pid}) is{place} and delivers no batch.{held}",
        at=at,
        evidence={**_waiting(blocked), in_dataset: f"{worker.source}/py_spy.json", **locked},
    )


def _busy_worker(
    cell: CellEvidence, blocked: BlockedRank, worker: CaptureEvidence, at: Place, lasted: float
) -> Draft:
    """A worker whose call does not return, whatever its variables: only time distinguishes that from work."""
    call = f"its worker {worker.number} runs, in the same call of {at.function}, with the same arguments, in every snapshot since the silence began"
    pause = f"that lasted {lasted:.0f} s; the longest pause of this job before was {cell.watch.longest_quiet_s or 0:.1f} s"
    return inside_rank(
        cell,
        blocked,
        strength=Strength.WEAK,
        summary=f"A DataLoader worker of rank {blocked.number} (pid {worker.number}) has been in one call{at_line(at)} for {lasted:.0f} s, at full CPU, and delivers no batch.",
        at=at,
        evidence={
            **_waiting(blocked),
            call: f"{blocked.capture.source}/answers.json#sources.workers",
            pause: "watch.json",
        },
        fix="Look at what the call does with that sample (a pattern that backtracks, a search that grows with its input), and bound it; a timeout= of the loader makes it an exception.",
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the worker ever continues",
    )


def _raised(case: Case) -> Iterator[Draft]:
    """A fault that torch noticed: it raised in the rank's loop, at whatever line that was."""
    first = first_break(case.cell)
    raised = first.rank.exception if first and first.kind == "exception" else None
    if first is None or raised is None:
        return
    exception, number = first_of(raised), first.rank.rank
    said = LOST_WORKER.search(exception.message)
    if not said and not LATE.search(exception.message):
        return
    how = said["end"] if said else "returned no batch within the loader's timeout"
    when = f" at {first.t_s:.1f} s, first of all" if first.t_s else ""
    claim = f"rank {number} raised{when}: {exception.message.splitlines()[0][:200]}"
    named = cause_in(exception)
    yield Draft(
        strength=Strength.CONCLUSIVE,
        summary=f"A DataLoader worker of rank {number} {how}; the loader raised in the rank.",
        guilty_ranks=(number,),
        at=_asked_at(case, number, exception) or locations.of_exception(raised),
        evidence={claim: f"{first.rank.source}/exception.json"},
        fix=named.fix if named else OF_ITS_OWN_EXIT if "exit code" in how else OF_A_WORKER,
        actions=_actions(named, said["end"] if said else ""),
    )


def _asked_at(case: Case, rank: int, raised: Cause) -> Place | None:
    """The line that asks the loader for batches; a signal's handler raises wherever its rank is just then."""
    by_signal = raised.frames[-1:] and raised.frames[-1].file.endswith("_utils/signal_handling.py")
    asked = case.begun(Kind.DATA) if by_signal else case.events[:0]
    sites = [str(row.site) for row in asked[asked["rank"] == rank].itertuples()]
    return locations.of_text(sites[-1]) if sites else locations.of_exception(raised)


def _actions(named: ErrorCause | None, end: str) -> tuple[Act, ...]:
    """As the error's text says; of a worker that somebody killed a retry."""
    if named:
        return named.actions
    return ("retry",) if KILLED.search(end) else ("fix code",)


RULE = Rule(
    means={"dataloader_worker_fault": "A DataLoader worker is dead or stuck, and its rank waits for it."},
    family="exit",
    detected="The rank waits in its DataLoader in both snapshots, and one of the loader's workers is in the dataset's code, or waits for a lock that no thread is left to release. Or torch raised that a worker was killed or returned nothing in time. Or, when the job was given up, the worker had stayed in the same call, with the same arguments, through at least four snapshots of a long silence (at 60 %).",
    fix="Look at what the dataset does at the line shown; give the loader a timeout=, and start workers by spawn or forkserver where locks or threads are around.",
    check=dataloader_worker_fault,
    needs=("stacks",),
    explained_by=("rank_killed",),
    confused_with=("rank_exception", "rank_killed", "uneven_inputs", "straggler_rank", "missing_rank"),
)

"""A job that no other rule explains; the verdict says what is known, what is missing, and what to try."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.pending import is_still, is_suspended
from nsadiag.analysis.relations.steadiness import damage, launches
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Outcome, Place, Strength, Where

NO_RECORDER = (
    "no process of the job opened a recorder: none of them trained with torch, or Python ran with -S or -I"
)


def _what_is_known(cell: CellEvidence) -> tuple[Outcome, str]:
    if is_suspended(cell) and cell.stopped in ("hang", "timeout"):
        return (
            "hung" if cell.stopped == "hang" else "unknown",
            "Every rank is stopped by a signal: a batch system, a terminal or a person has suspended the job (kill -CONT resumes it)",
        )
    if is_still(cell) and cell.ranks:
        return "hung", "Nothing moves on any rank, and no collective shows which rank is waited for"
    if cell.attached:
        looks = cell.watch.looks
        reason = looks[-1].reason if looks else "no rank could be captured"
        return ("unknown", f"Busy without visible progress, at the same lines in both snapshots: {reason}")
    if cell.stopped == "interrupt":
        return "unknown", "The run was interrupted before it came to an end"
    if cell.stopped == "timeout":
        return ("unknown", "--timeout was reached, and no observation distinguishes progress from waiting")
    if cell.launcher_exit_code:
        return (
            "crashed",
            f"The command ended with exit code {cell.launcher_exit_code} and no rank reported an error",
        )
    if lost := damage(cell):
        return "unknown", f"Inconclusive: no rank reported an error, but {lost.fact}"
    return "unknown", "Inconclusive: the job did not complete, and no rank reported an error"


def _nothing_to_diagnose(cell: CellEvidence) -> bool:
    """Whether a command without torch has completed."""
    return not (cell.ranks or cell.attached or cell.stopped) and cell.launcher_exit_code == 0


def _launcher_said(cell: CellEvidence) -> Claims:
    """Its last line with words in it: torchrun's summary ends in a ruler."""
    lines = [line.strip() for line in cell.launcher_stderr.splitlines()]
    last = next((line for line in reversed(lines) if any(c.isalnum() for c in line)), None)
    return {last[:200]: "nodes/*/launcher.stderr.log"} if last else {}


def _first_to_end(cell: CellEvidence) -> tuple[Place | None, Claims]:
    """The first rank that failed, even if its message only names a peer."""
    broke = next((each for each in breaks(cell) if each.kind != "exited"), None)
    if broke is None:
        return None, {}
    rank = broke.rank
    if broke.kind == "exception" and rank.exception:
        first = (rank.exception.message.splitlines() or [""])[0]
        claim = (
            f"rank {rank.rank} was the first to break, at {broke.t_s:.1f} s: {rank.exception.type}: {first}"
        )
        return locations.of_exception(rank.exception), {claim[:300]: f"{rank.source}/exception.json"}
    name = signal.Signals(rank.end.signal or 0).name
    claim = f"rank {rank.rank} was the first to end, at {broke.t_s:.1f} s, by {name}"
    here = locations.of_faults(rank.faults) or locations.of_black_box(rank)
    return here, {claim: "ends.json"}


def _is_busy(cell: CellEvidence) -> bool:
    """Whether the job was attached to, and something in it ran."""
    return cell.attached and not is_still(cell)


def _launched(case: Case) -> Claims:
    """NCCL's collective count, if it did not change between two snapshots."""
    found = case.once(launches)
    if found is None or found.since:
        return {}
    claim = "NCCL launched no collective on any rank between the snapshots"
    uneven = f"; {found.uneven}, so ranks are out of step" if found.uneven else ""
    return {claim + uneven: "nodes/*/captures/*/ras.json"}


def unknown(case: Case) -> Iterator[Draft | Declined]:
    if _nothing_to_diagnose(case.cell):
        yield Draft(
            outcome="unknown",
            strength=Strength.NONE,
            summary="Nothing to diagnose: exit code 0, no PyTorch process seen.",
            gaps=(NO_RECORDER,),
        )
        return
    outcome, summary = _what_is_known(case.cell)
    captured = [r for r in case.cell.ranks if r.captures]
    here = locations.of_rank_now(captured[0]) if captured else None
    process = next((c for c in reversed(case.cell.processes) if locations.of_frames(c.main_frames)), None)
    broke_at, evidence = _first_to_end(case.cell) if outcome == "crashed" else (None, {})
    here = broke_at or here
    evidence |= {**_launcher_said(case.cell), **_launched(case)}
    if process:
        here = locations.of_frames(process.main_frames)
        evidence["where the process was at the snapshot"] = f"{process.source}/py_spy.json"
    yield Draft(
        outcome=outcome,
        strength=Strength.NONE,
        summary=summary + ".",
        where=Where().at(here) if here else None,
        evidence=evidence,
        gaps=() if case.cell.ranks else (NO_RECORDER,),
        actions=("wait",) if is_suspended(case.cell) or _is_busy(case.cell) else (),
        next="take another snapshot later with nsadiag attach, or start it with nsadiag run --probes full -- <the same command>"
        if case.cell.attached
        else "nsadiag run --probes full --timeout 120 -- <the same command>",
    )


RULE = Rule(
    name="unknown",
    means={"unknown": "The evidence is inconclusive; the verdict says what is missing and what to collect."},
    family="terminal",
    outcome="unknown",
    detected="None of the other rules concludes. The verdict lists what is known, what is missing, and what to try",
    fix="",
    actions=("stop",),
    check=unknown,
    needs=(),
    explained_by=("healthy", "incomplete"),
)

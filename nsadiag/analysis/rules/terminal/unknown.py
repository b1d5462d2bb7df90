"""A job that no other rule explains; the verdict says what is known, what is missing, and what to try."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline, is_cut, place_of
from nsadiag.analysis.facts.exits import breaks, earliest_failure
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.collected.camps import camps, said_of
from nsadiag.analysis.relations.pending import PendingCall, is_still, is_suspended, waits
from nsadiag.analysis.relations.steadiness import damage, launches
from nsadiag.analysis.rules.drafts import at_line
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.analysis.rules.terminal.stated_only import said_of_job, shows_no_failure
from nsadiag.evidence.documents.watch import NO_END
from nsadiag.evidence.messages import NativeStack
from nsadiag.evidence.phrases import all_of, call_name, capitalized, these
from nsadiag.evidence.records import Outcome, Place, Strength, Where

NO_RECORDER = "no process of the job opened a recorder: none of them trained with torch, or Python ran with -S, -E or -I"

AGAIN = "take the stacks again some seconds later, and the flight recorder's dumps with them"
OTHERS = "gdb -p PID -batch -ex 'thread apply all bt'   # of every rank's process, and py-spy dump --native --pid PID"
MOST_CAMPS = 4  # places at which ranks stand, in one sentence


def unknown(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    if not (cell.ranks or cell.attached or cell.stopped) and cell.launcher_exit_code == 0:
        yield Draft(
            strength=Strength.NONE,
            summary="Nothing to diagnose: exit code 0, no PyTorch process seen.",
            gaps=(NO_RECORDER,),
        )
        return
    if cell.parity.judgement == "not_comparable" and not (cell.stopped or cell.launcher_exit_code):
        yield Draft(
            outcome="unknown",
            strength=Strength.NONE,
            summary=f"Not comparable with {cell.parity.control or 'its control'}: {cell.parity.why}.",
        )
        return
    outcome, summary = _of_others(case) if cell.collected else _what_is_known(cell)
    evidence = {**_launcher_said(cell), **_launched(case)}
    captured = next((r for r in cell.ranks if r.captures), None)
    here = locations.of_rank_now(captured) if captured else None
    if outcome == "crashed" and cell.collected:
        evidence = {**_lost_peers(cell), **evidence}
        raised = next((r.exception for r in cell.ranks if r.exception), None) or next(
            iter(cell.unnamed), None
        )
        here = (place_of(first_of(raised)) if raised else None) or here
    elif outcome == "crashed" and (first := _first_to_end(cell) or _left_by_itself(cell)):
        place, claim, source = first
        here, evidence = place or here, {claim: source, **evidence}
    process = next((c for c in reversed(cell.processes) if locations.of_frames(c.main_frames)), None)
    if process:
        here = locations.of_frames(process.main_frames)
        evidence["where the process was at the snapshot"] = f"{process.source}/py_spy.json"
    is_busy = cell.attached and not is_still(cell)
    again = "nsadiag run --probes full --timeout 120 -- <the same command>"
    if cell.collected:
        again = AGAIN if case.thread_states else OTHERS if cell.collected.of(NativeStack) else ""
        evidence |= _timeouts(case) | (said[1] if (said := said_of_job(case)) else {})
    if cell.attached:
        again = "take another snapshot later with nsadiag attach, or start it with nsadiag run --probes full -- <the same command>"
    yield Draft(
        outcome=outcome,
        strength=Strength.NONE,
        summary=f"{summary}.",
        at=here,
        where=_where(case),
        evidence=evidence,
        gaps=() if cell.ranks or cell.collected else (NO_RECORDER,),
        actions=("wait",)
        if is_suspended(cell) or is_busy
        else ("unknown",)
        if shows_no_failure(cell)
        else (),
        next=again or None,
    )


def _where(case: Case) -> Where | None:
    """The call that timed out, as a log has it."""
    wait = next(iter(waits(case)), None) if case.cell.collected else None
    return Where(collective=wait.collective(wait.waiting[0])) if wait else None


def _of_others(case: Case) -> tuple[Outcome, str]:
    """Evidence of other tools: what is pending in it, and why that blames nobody."""
    cell, told = case.cell, case.told
    broke = any(rank.exception or rank.end != NO_END for rank in cell.ranks)
    stacks = [rank.rank for rank in cell.ranks if any(capture.stacks for capture in rank.captures)]
    for wait in waits(case)[:1]:
        call = call_name(wait.collective(wait.waiting[0]).op, wait.seq, wait.group)
        if told.movement == "young":
            return (
                "unknown",
                f"{these(wait.deviating or wait.waiting).capitalize()} had not {'reached' if wait.missing else 'completed'} {call}, which was pending for {told.pending_s:.1f} s when the dumps were written: a job that runs well looks the same",
            )
        if not stacks and is_of_a_log(cell.rank(wait.waiting[0])):
            return "hung", _of_a_log(case, wait, call)
        if not stacks:
            unseen = (
                f". {these(wait.unseen).capitalize()} left no dump: whoever is missing may be among them"
                if wait.unseen
                else ", and nothing shows which rank is waited for"
            )
            return (
                "unknown",
                f"{capitalized(all_of(len(cell.everyone(wait.waiting))))} with a dump issued {call}, and {'has' if len(wait.waiting) == 1 else 'none has'}{' not' if len(wait.waiting) == 1 else ''} completed it{unseen}",
            )
    if stacks and not broke:
        if told.movement == "moved":
            return "unknown", f"Stacks of {these(sorted(stacks))} show that the job moved between them"
        return (
            "unknown",
            f"Stacks show nobody that the others wait for: {said_of(case, camps(case)[:MOST_CAMPS])}",
        )
    if not broke and not case.calls.empty:
        return "unknown", _nothing_pending(cell)
    if said := said_of_job(case):
        return "unknown", said[0]
    if lost := _lost_peers(cell):
        if cut := _cut_off(cell):
            return "crashed", f"The traceback of {cut} is cut before its last line, which names the error"
        return (
            "crashed",
            f"These files have only errors that follow from the loss of a peer ({len(lost)} of them): whoever failed first does not say so in them",
        )
    return _what_is_known(cell)


def _nothing_pending(cell: CellEvidence) -> str:
    """Dumps without a call that waits: who left them may be whom the others wait for."""
    seen, absent = [rank.rank for rank in cell.ranks], sorted(cell.absent)
    if not absent:
        return "No collective is pending in the dumps, and the ranks are not equally far"
    return f"Nothing is pending in the dump{'s' * (len(seen) > 1)} of {these(seen)}, and {len(absent):,} of {cell.world_size:,} ranks left none: the others may be waiting for {these(seen)}"


def _lost_peers(cell: CellEvidence) -> Claims:
    """Errors that tell of a peer that is gone, none of which is the first."""
    found: Claims = {}
    for broke in breaks(cell):
        if broke.kind == "exception" and broke.rank.exception:
            source = f"{broke.rank.source}/exception.json"
            found[f"the error of rank {broke.rank.rank}: {headline(first_of(broke.rank.exception))}"] = source
    for raised in cell.unnamed:
        found[f"an error of a process without a name: {headline(first_of(raised))}"] = raised.source
    return found


def _cut_off(cell: CellEvidence) -> str:
    """The ranks whose tracebacks lack their end, where that is all there is; empty otherwise."""
    raised = [(broke.rank.rank, broke.rank.exception) for broke in breaks(cell) if broke.rank.exception]
    every = [*raised, *((None, each) for each in cell.unnamed)]
    if not all(is_cut(first_of(each)) for _, each in every):
        return ""
    return these([rank for rank, _ in raised]) if raised else "a process"


def _timeouts(case: Case) -> Claims:
    """The calls that timed out, as a log has them."""
    found: Claims = {}
    for wait in waits(case)[:MOST_CAMPS]:
        rank = wait.waiting[0]
        if is_of_a_log(case.cell.rank(rank)):
            call = call_name(wait.collective(rank).op, wait.seq, wait.group)
            found[f"{these(case.cell.everyone(wait.waiting))} timed out in {call}"] = wait.source(
                case.cell, rank
            )
    return found


def _of_a_log(case: Case, wait: PendingCall, call: str) -> str:
    """A sentence on timeouts that leave open for whom they waited."""
    cell = case.cell
    waiting, silent = cell.everyone(wait.waiting), cell.everyone({*wait.missing, *wait.unseen})
    who = f"{these(waiting).capitalize()} timed out in {call}{wait.barrier_note}"
    if len(silent) > len(waiting):
        return f"{who}, and {len(silent):,} others reported no timeout: whom these wait for is among them, or they were ended before"
    if silent:
        return f"{who}; {these(silent)} reported no timeout: {'it' if len(silent) == 1 else 'they'} may have kept the others waiting, or been ended before"
    all_ = "" if len(waiting) == 1 else ", and no other rank is known"
    return f"{who}{all_}: which of them the others wait for, or whether a link failed, this log does not tell"


def _what_is_known(cell: CellEvidence) -> tuple[Outcome, str]:
    if is_suspended(cell) and cell.stopped in ("hang", "timeout"):
        return (
            "hung" if cell.stopped == "hang" else "unknown",
            "Every rank is stopped by a signal: a batch system, a terminal or a person has suspended the job (kill -CONT resumes it)",
        )
    if is_still(cell) and cell.ranks:
        return "hung", "Nothing moves on any rank, and no collective shows which rank is waited for"
    if cell.attached:
        last = cell.watch.last_look
        if last is None or last.judgement == "unobserved":
            why = last.reason if last else "no rank could be captured"
            return "unknown", f"The job ended, or could not be read, before its second snapshot: {why}"
        reason = last.reason
        return "unknown", f"Busy without visible progress, at the same lines in both snapshots: {reason}"
    if cell.stopped == "interrupt":
        return "unknown", "The run was interrupted before it came to an end"
    if cell.stopped == "timeout":
        return "unknown", "--timeout was reached, and no observation distinguishes progress from waiting"
    if code := cell.launcher_exit_code:
        return "crashed", f"The command ended with exit code {code} and no rank reported an error"
    if lost := damage(cell):
        return "unknown", f"Inconclusive: no rank reported an error, but {lost.fact}"
    return "unknown", "Inconclusive: the job did not complete, and no rank reported an error"


def _launcher_said(cell: CellEvidence) -> Claims:
    """Its last line with words in it: torchrun's summary ends in a ruler."""
    lines = [line.strip() for line in cell.launcher_stderr.splitlines()]
    last = next((line for line in reversed(lines) if any(c.isalnum() for c in line)), None)
    return {last[:200]: "nodes/*/launcher.stderr.log"} if last else {}


def _first_to_end(cell: CellEvidence) -> tuple[Place | None, str, str] | None:
    """The first rank that failed, even if its message only names a peer: its line, and the claim with its file."""
    broke = earliest_failure(cell)
    if broke is None:
        return None
    rank, at_s = broke.rank, f"at {broke.t_s:.1f} s"
    if broke.kind == "exception" and rank.exception:
        first = (rank.exception.message.splitlines() or [""])[0]
        claim = f"rank {rank.rank} was the first to fail, {at_s}: {rank.exception.type}: {first}"
        return locations.of_exception(rank.exception), claim[:300], f"{rank.source}/exception.json"
    here = locations.of_faults(rank.faults) or locations.of_black_box(rank)
    return here, f"rank {rank.rank} was the first to end, {at_s}, by {broke.killed_by.name}", "ends.json"


def _left_by_itself(cell: CellEvidence) -> tuple[Place | None, str, str] | None:
    """A rank that called for its end, with an exit code that says it failed: the line of the call."""
    for rank in cell.ranks:
        if rank.leaving and rank.end.exit_code:
            place = locations.of_text(rank.leaving.place)
            claim = f"rank {rank.rank} ended itself with exit code {rank.end.exit_code}{at_line(place)}"
            return place, claim, f"{rank.source}/leaving.json"
    return None


def _launched(case: Case) -> Claims:
    """NCCL's collective count, if it did not change between two snapshots."""
    found = case.once(launches)
    if found is None or found.since:
        return {}
    uneven = f"; {found.uneven}, so ranks are out of step" if found.uneven else ""
    claim = f"NCCL launched no collective on any rank between the snapshots{uneven}"
    return {claim: "nodes/*/captures/*/ras.json"}


RULE = Rule(
    means={"unknown": "The evidence is inconclusive; the verdict says what is missing and what to collect."},
    family="terminal",
    outcome="unknown",
    detected="None of the other rules concludes. The verdict lists what is known, what is missing, and what to try.",
    fix="",
    actions=("stop",),
    check=unknown,
    needs=(),
    explained_by=("healthy", "incomplete"),
)

"""A job that completed, or progressed at a steady rate until it was stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.pace import Pace
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.steadiness import damage, doubt, furthest, moves, was_cut_off
from nsadiag.analysis.rules.correctness.duplicate_inputs import same_batches
from nsadiag.analysis.rules.correctness.states.remarks import came_back_otherwise
from nsadiag.analysis.rules.correctness.wiring.severed_gradients import undecided
from nsadiag.analysis.rules.drafts import named, recorder_of
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import all_of, count
from nsadiag.evidence.phrases import rate as rate_text
from nsadiag.evidence.recorder import pending
from nsadiag.evidence.records import Strength
from nsadiag.evidence.ring.blackbox import Kind

WORK = (int(Kind.FORWARD), int(Kind.BACKWARD), int(Kind.STEP), int(Kind.DATA))
LEAST_START_UP_S, LEAST_SHARE = 1.0, 0.2  # from which on start-up is mentioned


def healthy(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    if cell.parity.judgement == "not_comparable":
        yield Declined(
            f"it was to be compared with {cell.parity.control or 'a control'}, and cannot be: {cell.parity.why}"
        )
        return
    # A job with an error code has not completed, whatever its ranks report, unless a rank's teardown caused it.
    failed = bool(cell.launcher_exit_code) and not any(r.end.signal for r in cell.ranks)
    if cell.ranks and not cell.absent and not failed and all(_finished(r) for r in cell.ranks):
        open_question = undecided(case)
        yield Declined(open_question) if open_question else _completed(case)
    elif cell.collected and (draft := _nothing_pending(case)):
        yield draft
    elif was_cut_off(cell) and (moved := moves(case)):
        yield Draft(
            strength=Strength.LIKELY,
            summary=f"Progressing at the last snapshot: {moved}.",
            evidence={moved: "watch.json#looks"},
        )
    elif was_cut_off(cell) and (pace := case.once(furthest)):
        if found := doubt(case):
            yield Declined(found.fact, found.source)
            return
        yield _progressing(case, pace)
    if lost := damage(cell):
        yield Declined(lost.fact, lost.source)
    yield from other_break(cell)


def _nothing_pending(case: Case) -> Draft | None:
    """By the dumps of all ranks, and nothing else: everyone has completed all that it issued, and is as far as the others."""
    cell, calls = case.cell, case.calls
    dumps = [capture.flight_recorder for rank in cell.ranks for capture in rank.captures]
    if not dumps or not all(dumps) or cell.absent or any(map(pending, dumps)) or calls.empty:
        return None
    if any(len({*issued.values()}) > 1 for issued in _issued_by_members(case)):
        return None
    return Draft(
        strength=Strength.WEAK,
        summary=f"All collectives in the dumps of {all_of(len(cell.everyone(r.rank for r in cell.ranks)))} are complete: nobody waits for a peer.",
        evidence={"nothing in it is pending": f"{cell.ranks[0].captures[-1].source}/fr.json"},
        gaps=("a dump shows collectives alone: a rank that is stuck elsewhere would not be seen",),
    )


def _issued_by_members(case: Case) -> Iterator[dict[int, int]]:
    for group, issued in case.issued.items():
        members = case.groups.members(group)
        yield {rank: seq for rank, seq in issued.items() if rank in members}


def _finished(rank: RankEvidence) -> bool:
    """Whether it reached its exit handlers without an exception; gloo may abort the process afterwards (in 6 of 48 jobs).

    Or it skipped them on purpose: `os._exit(0)` at the end, so that no teardown can hang.
    """
    code, left = rank.end.exit_code, rank.leaving
    on_purpose = left is not None and left.call == "_exit" and code == 0 and not left.handling
    well = code in (0, None) or rank.end.signal == signal.SIGABRT
    return (rank.end.clean or on_purpose) and well and not rank.damaged and rank.exception is None


def _completed(case: Case) -> Draft:
    cell = case.cell
    aborted = {r.rank: signal.Signals(r.end.signal).name for r in cell.ranks if r.end.signal}
    how = "finished without an exception"
    if not all(r.end.clean for r in cell.ranks):
        how = "ended without an exception, by os._exit(0) or at the end of the script"
    evidence = {f"{all_of(cell.world_size)} {how}": "ends.json"}
    if aborted:
        by = " or ".join(sorted(set(aborted.values())))
        claim = f"{named(cell, aborted)} ended by {by} after the exit handlers: in teardown, not in the job's work"
        evidence[claim] = "ends.json"
    restarts = list(_restarts(cell))
    again = ", after a restart" if restarts else ""
    remark = same_batches(case) or came_back_otherwise(case)
    return Draft(
        strength=Strength.CONCLUSIVE if not aborted else Strength.STRONG,
        summary=f"Completed: {_counted(case)} in {cell.watch.ended_s or 0:.1f} s{_start_up(case)}{again}."
        + (f" {remark.sentence}" if remark else ""),
        evidence={**evidence, **dict(restarts[:3]), **(remark.evidence if remark else {})},
        fix=remark.fix if remark else None,
    )


def _progressing(case: Case, pace: Pace) -> Draft:
    rate = f", lately {rate_text(pace.rate_per_s)} a second" if pace.rate_per_s else ""
    ended = {"timeout": "when --timeout ended it", "interrupt": "when it was interrupted"}
    until = ended.get(str(case.cell.stopped), "at the last snapshot")
    claim = f"rank {pace.rank} completed its last {pace.unit} {pace.since_s:.1f} s before, and one every {pace.typical_s:.3g} s"
    return Draft(
        strength=Strength.STRONG,
        summary=f"Progressing at its own rate {until}: {_counted(case)} in {case.cell.watch.ended_s or 0:.0f} s{rate}.",
        evidence={claim: recorder_of(case.cell, pace.rank)},
    )


def _counted(case: Case) -> str:
    """`20 steps on 2 ranks`; iterations of the loop where no optimizer step was recorded."""
    pace = case.once(furthest)
    ranks = count(case.cell.world_size, "rank")
    return f"{pace.counted} on {ranks}" if pace else ranks


def _start_up(case: Case) -> str:
    """The time before the first work, where the recorders reach back to it: imports are no training."""
    whole_s, events = case.cell.watch.ended_s or 0.0, case.events
    if not whole_s or events.empty or not all(rank.recording.is_whole for rank in case.cell.ranks):
        return ""
    first = events.loc[events.kind.isin(WORK), "t_s"].min()
    worth_saying = LEAST_START_UP_S <= first <= whole_s and first >= LEAST_SHARE * whole_s
    return f", {first:.1f} s of it for start-up" if worth_saying else ""


def _restarts(cell: CellEvidence) -> Iterator[tuple[str, str]]:
    """The first exception of each attempt before the one that completed."""
    ended = [(n, rank, e) for rank in cell.ranks for n, e in rank.attempts if e.in_main_thread]
    for number in sorted({n for n, _, _ in ended}):
        of_attempt = [(rank, e) for n, rank, e in ended if n == number]
        rank, exception = min(of_attempt, key=lambda each: each[1].t_mono_ns)
        yield (
            f"attempt {number} ended as rank {rank.rank} raised {headline(first_of(exception))}; the launcher restarted the ranks",
            f"{rank.source}/attempts/{number:02d}/exception.json",
        )


RULE = Rule(
    means={"healthy": "The job completed, or progresses at a steady rate."},
    family="terminal",
    outcome="healthy",
    detected="All ranks reached their exit handlers without an exception; or, until `--timeout` or Ctrl-C, every rank that was not waiting for a peer made iterations at a steady rate.",
    fix="",
    actions=(),
    check=healthy,
    needs=("ends",),
)

"""A rank that has finished its work and does not exit: an exit handler, an unfinished thread or child, a process group."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, hung_ranks, user_threads
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.ring.blackbox import Kind, Phase

FEEDER = "QueueFeederThread"
FIX_OF_FEEDER = "Put nothing into the queue once its reader has ended, and join the reader only after the last put; if the items may be lost, call the queue's cancel_join_thread()."
JOINS = ("lock", "queue", "process", "pipe", "socket", "unknown", "sleep", "io")
# The functions at the bottom of a main thread's stack while the script itself runs.
SCRIPT = ("<module>", "_run_code", "_run_module_as_main")
EXITS = ("_exit_function", "_run_exitfuncs", "_run_finalizers", "_shutdown", "_python_exit")


def teardown_hang(case: Case) -> Iterator[Draft | Declined]:
    for blocked in hung_ranks(case):
        how = _how(case, blocked)
        if how is None or blocked.waiters or blocked.rank.exception:
            continue
        at, who = _line(blocked)
        where = f"; {who}{at_line(at)}" if at else ""
        number = blocked.number
        yield inside_rank(
            case.cell,
            blocked,
            strength=Strength.STRONG if at else Strength.LIKELY,
            summary=f"Rank {number} has finished its work and does not exit: {how}{where}.",
            at=at,
            evidence={
                f"{how}{where}{blocked.state.in_both_snapshots}": blocked.source,
                f"rank {number} completed {count(blocked.rank.end.steps or 0, 'step')}, and no rank waits for it in a collective": "ends.json",
            },
            fix=FIX_OF_FEEDER if _waits_for_a_feeder(blocked) else None,
        )
    yield from blocked_elsewhere(case, JOINS, "has not finished its work")


def _how(case: Case, blocked: BlockedRank) -> str | None:
    """A sign that the rank has finished its work; None if there is none."""
    state, frames = blocked.state, blocked.capture.main_frames
    if state.doing == "leaving":
        return "the interpreter waits for its threads and child processes to end"
    # Stacks that somebody copied may lack their end.
    bottom = frames[-1].name if frames else SCRIPT[0]
    if bottom in EXITS if case.cell.collected else bottom not in SCRIPT:
        return "an exit handler runs"
    if any("destroy_process_group" in name for name in (*state.inner, state.event or "")):
        return "destroy_process_group() does not return"
    if state.doing in JOINS and _destroyed(blocked):
        return "it has destroyed its process group"
    if state.doing in JOINS and _peers_have_finished(case.cell, blocked):
        return "its peers exited normally after the same number of steps"
    return None


def _destroyed(blocked: BlockedRank) -> bool:
    """Whether the last event of a process group is its destruction."""
    recording = blocked.rank.recording
    events = recording.events
    groups = events[(events["kind"] == Kind.PROCESS_GROUP) & (events["phase"] == Phase.END)]
    return len(groups) > 0 and recording.names_of(groups)[-1].startswith("destroy_process_group")


def _peers_have_finished(cell: CellEvidence, blocked: BlockedRank) -> bool:
    steps = blocked.rank.end.steps
    others = [r for r in cell.ranks if r.rank != blocked.number]
    ends = [r.end.clean and not r.end.by_us and r.exception is None and r.end.steps == steps for r in others]
    return bool(ends) and all(ends)


def _line(blocked: BlockedRank) -> tuple[Place | None, str]:
    """The line that blocks it, and what is there: the main thread, or the thread or child that it waits for."""
    if blocked.state.place:
        return blocked.state.place, "the main thread is"
    if _waits_for_a_feeder(blocked):
        # It does not wait for the threads that run user code.
        return _start_of_the_feeder(blocked), "its queue's feeder thread was started by the first put"
    joined = {row.tid for row in blocked.rank.threads}
    threads = user_threads(blocked.capture)
    for thread, place in sorted(threads, key=lambda each: each[0].os_thread_id not in joined):
        return place, f"{thread.title} is"
    for child in blocked.capture.children:
        if at := locations.of_frames(child.main_frames):
            return at, f"child process {child.number} is"
    return None, ""


def _waits_for_a_feeder(blocked: BlockedRank) -> bool:
    return any(f.name.endswith("_finalize_join") for f in blocked.capture.main_frames)


def _start_of_the_feeder(blocked: BlockedRank) -> Place | None:
    """The first put into the queue whose feeder thread is writing; if none is, into that of any live feeder."""
    living = {t.os_thread_id: t for t in blocked.capture.other_threads if t.os_thread_id}
    feeders = [row for row in blocked.rank.threads if row.name == FEEDER and row.tid in living]
    writing = [r for r in feeders if r.tid and any("send" in f.name for f in living[r.tid].frames)]
    return next((locations.of_text(row.place) for row in writing or feeders), None)


RULE = Rule(
    means={"teardown_hang": "A rank has finished its work and does not exit."},
    family="exit",
    detected="No rank waits in a collective, and one rank is in an exit handler, in the interpreter's join of its threads, in `destroy_process_group` or blocked after it, or blocked after its peers have exited normally with as many steps. `where` is the line of the thread or child that it waits for; for a queue's feeder thread, the first put.",
    fix="Stop it before the script ends: signal the thread (a sentinel, an event) and join it, make it a daemon, or terminate the child.",
    check=teardown_hang,
    needs=("stacks",),
    explained_by=("lost_host",),
    confused_with=("rank_exited_early", "local_lock_deadlock", "missing_rank"),
)

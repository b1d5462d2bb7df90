"""A rank that a signal or a debugger has stopped: it executes nothing until it is continued, and its peers wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.blocked import was_alive
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import all_but, at_line, last_look, named
from nsadiag.analysis.rules.reasons import not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import waits_wait
from nsadiag.evidence.records import Strength

STOPPED = {"T": "SIGSTOP", "t": "a debugger"}  # by the kernel's state
FIXES = {
    "SIGSTOP": "Find what stopped it: a batch system that suspends jobs, a throttle such as cpulimit, a debugger. `kill -CONT {pid}` resumes it.",
    "a debugger": "Detach the debugger or tracer that holds it (TracerPid in /proc/PID/status).",
}


def stopped_rank(case: Case) -> Iterator[Draft | Declined]:
    cell = case.cell
    last_look_ = cell.watch.last_look
    if not is_still(cell) or last_look_ is None:
        yield from not_still(cell)
        return
    # Earlier snapshots may show a rank that was running.
    first = last_look_.first
    stopped = []
    for rank in cell.ranks:
        states = [capture.proc.state for capture in rank.captures if capture.number >= first]
        if states and was_alive(rank.end) and all(state in STOPPED for state in states):
            stopped.append(rank.rank)
    running = all_but(cell, stopped)
    if not stopped or not running:
        which = "every rank" if stopped else "no rank"
        yield Declined(f"the kernel shows {which} as stopped in every snapshot")
        return
    guilty = cell.rank(stopped[0])
    here, last = locations.of_rank_now(guilty), guilty.captures[-1]
    by = STOPPED[last.proc.state]
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{named(cell, stopped).capitalize()} is stopped by {by}{at_line(here)} and executes nothing, while {named(cell, running)} {waits_wait(cell.everyone(running))} for it.",
        guilty_ranks=tuple(stopped),
        at=here,
        peers_at=locations.of_rank_now(cell.rank(running[0])),
        evidence={
            f"the kernel shows rank {stopped[0]} as stopped (kernel state {last.proc.state}) in every snapshot": f"{last.source}/proc.json",
            **last_look(cell),
        },
        fix=FIXES[by].format(pid=last.proc.pid or "PID"),
    )


RULE = Rule(
    concludes=("missing_rank",),
    family="stopped",
    detected="Every snapshot of a silence shows the rank stopped by a signal or a debugger, while others run.",
    fix="Find what stopped the rank: a batch system, a throttle, a debugger. `kill -CONT` resumes it.",
    actions=("retry",),
    check=stopped_rank,
    needs=("looks",),
    confused_with=("rank_killed", "local_lock_deadlock", "straggler_rank"),
)

"""A job that was cut off before it failed or showed a steady rate; the verdict says what is known."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.pace import seen_until_s
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.peer_waits import peer_waits
from nsadiag.analysis.relations.steadiness import (
    doubt,
    furthest,
    kept_waiting,
    longest_now,
    moves,
    paces,
    was_cut_off,
)
from nsadiag.analysis.rules.drafts import line_of
from nsadiag.analysis.rules.reasons import everyone
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.phrases import rate as rate_text
from nsadiag.evidence.records import Strength

MOST_WAITS = 3
NEXT_ATTACHED = "nsadiag attach again later, or nsadiag attach --run DIR for a job that nsadiag watches and whose steps it knows"
NEXT = {
    "timeout": "nsadiag run --timeout <longer> -- <the same command>; --locals shows whether its variables change",
    "interrupt": "nsadiag run -- <the same command>, and leave it alone for longer: a silence that lasts is judged by itself. nsadiag where shows the ranks' lines meanwhile",
}
ENDED_BY = {"timeout": "Cut off by --timeout", "interrupt": "Interrupted"}


def _known(case: Case) -> Iterator[tuple[str, str]]:
    """Progress and rate, and which ranks waited for which."""
    pace = case.once(furthest)
    if pace is not None:
        rate = f", lately {rate_text(pace.rate_per_s)} a second" if pace.rate_per_s else ""
        yield (
            f"rank {pace.rank} completed {pace.counted}{rate}, the last one {pace.since_s:.1f} s before the end",
            f"{case.cell.rank(pace.rank).source}/blackbox.bin",
        )
    waits = case.once(peer_waits)
    for wait in [w for w in waits.ranked() if w.now_s][:MOST_WAITS]:
        what = f" ({wait.what})" if wait.what else ""
        yield (
            f"{kept_waiting(case, wait)}{what}; {wait.total_s:.1f} s in all",
            wait.source or "watch.json#looks",
        )
    if last := case.cell.watch.last_look:
        yield last.reason, "watch.json#looks"


def incomplete(case: Case) -> Iterator[Draft | Declined]:
    if not was_cut_off(case.cell) or not (len(case.events) or case.cell.attached):
        yield Declined(
            f"in {seen_until_s(case.cell):.0f} s the job was not cut off while it moved", "watch.json"
        )
        return
    found = doubt(case)
    if found is None or moves(case):
        return  # healthy
    worst = longest_now(case)
    if case.cell.attached and worst is None and not case.once(paces):
        yield Declined(f"{everyone(case.cell)} did not move at the last snapshot", "watch.json#looks")
        return
    ended_by = ENDED_BY.get(str(case.cell.stopped), "Attached to")
    summary = f"{ended_by} after {case.cell.watch.ended_s or 0.0:.0f} s, without a failure and without a steady rate: {found.fact}."
    everybody = worst is not None and set(worst.waiters) == {r.rank for r in case.cell.ranks} - {worst.rank}
    yield Draft(
        strength=Strength.GUESS if everybody else Strength.NONE,
        summary=summary,
        guilty_ranks=(worst.rank,) if worst and everybody else (),
        blocked_ranks=worst.waiters if worst else (),
        at=worst.at if worst else line_of(case, [r.rank for r in case.cell.ranks]),
        peers_at=line_of(case, worst.waiters) if worst else None,
        evidence={found.fact: found.source, **dict(_known(case))},
        next=NEXT_ATTACHED if case.cell.attached else NEXT.get(str(case.cell.stopped), NEXT["timeout"]),
    )


RULE = Rule(
    means={"incomplete": "The job was cut off before it failed or showed a steady rate."},
    family="terminal",
    outcome="incomplete",
    detected="The job was stopped by `--timeout` or Ctrl-C, or attached to, while something still moved, but it shows no steady rate. A rank that waits for no peer made no iteration for longer than three of its longest pauses (at least 2 s), made fewer than three iterations, or takes three times as long for each of late; or one rank has kept its peers waiting for more than three times the longest wait before. The verdict says what is known: progress, rate, and which ranks waited for which, for how long, and where. It names a rank as guilty only where all others wait for it.",
    fix="",
    actions=("wait",),
    check=incomplete,
    needs=("black_boxes",),
    explained_by=("healthy",),
    confused_with=("healthy", "slow_compute", "straggler_rank", "livelock_user_code"),
)

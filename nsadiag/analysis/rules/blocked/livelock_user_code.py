"""A rank that spins in a loop of its own code at full CPU, while nothing in that loop changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import LEAST_S, LONG_S, PAUSES, in_one_place_s, python_answered
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks
from nsadiag.analysis.relations.peer_waits import peer_waits
from nsadiag.analysis.relations.pending import is_still, was_given_up
from nsadiag.analysis.relations.steadiness import kept_waiting
from nsadiag.analysis.rules.drafts import inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.watch import Loop, RankMotion
from nsadiag.evidence.records import Strength
from nsadiag.source import loops

FIX = "Make sure that each iteration changes what the loop's condition tests, or let the loop give up with an error after a number of iterations."


def _motion(cell: CellEvidence, rank: int) -> RankMotion | None:
    """The rank's motion in the last snapshot; if the job was given up, in the last one that shows its loop."""
    looks = [motion for look in cell.watch.looks if (motion := look.of(rank))]
    if not is_still(cell):
        looks = [motion for motion in looks if motion.loop]
    return looks[-1] if looks else None


def _endless(cell: CellEvidence, motion: RankMotion | None) -> Loop | None:
    """The loop, if the watch judged it endless; or, if the job was given up, if nothing new was seen in it for long."""
    loop = motion.loop if motion else None
    if loop is None or motion is None:
        return None
    if is_still(cell):
        return loop if motion.endless else None
    limit = max(LEAST_S, PAUSES * (cell.watch.longest_quiet_s or 0.0))
    return loop if was_given_up(cell) and not loop.changes and loop.seconds > limit else None


def livelock_user_code(case: Case) -> Iterator[Draft | Declined]:
    for blocked in blocked_ranks(case):
        motion = _motion(case.cell, blocked.number)
        loop = _endless(case.cell, motion)
        if loop is None or motion is None:
            yield from _around_one_line(case.cell, blocked)
            yield from _asks_in_vain(case.cell, blocked, motion)
            yield from _keeps_its_peers_waiting(case, blocked, motion)
            if motion and motion.main_cpu_share is not None:
                used = f"used {motion.main_cpu_share:.2f} CPUs"
                yield Declined(
                    f"the main thread of rank {blocked.number} {used} at the last snapshot",
                    "watch.json#looks",
                )
            continue
        sure, number = is_still(case.cell), blocked.number
        at = locations.place(loop.file, loop.line, loop.function)
        sees = "the variables that decide when it ends" if loop.decided else "its variables"
        yield inside_rank(
            case.cell,
            blocked,
            strength=(Strength.STRONG if loop.decided else Strength.LIKELY) if sure else Strength.WEAK,
            summary=f"Rank {number} spins in the loop at {locations.short(at)} without progress: for {loop.seconds:.0f} s none of {sees} changed.",
            where=at,
            evidence={
                f"{loop.samples} samples of the last snapshot show {loop.stacks} stacks, all in that loop (lines {', '.join(map(str, loop.lines))}), and no new value in {sees}": "watch.json#looks",
                f"its main thread used {motion.main_cpu_share if motion.loop_cpu_share is None else motion.loop_cpu_share:.2f} CPUs, wrote no event and read or wrote {motion.io_bytes} bytes": "watch.json#looks",
            },
            fix=FIX,
        )
    yield from blocked_elsewhere(case, ("python", "native"), "in a loop of Python")


def _around_one_line(cell: CellEvidence, blocked: BlockedRank) -> Iterator[Draft]:
    """A `while` around a call that takes nearly all of its time, so that only this line is ever seen, in a job given up."""
    answered, at = python_answered(blocked.rank), blocked.state.place
    if not was_given_up(cell) or answered is None or at is None:
        return
    lasted = in_one_place_s(cell, blocked.rank)
    loop = loops.while_around(cell.code, at)
    if not lasted or loop is None:
        return
    number = blocked.number
    yield inside_rank(
        cell,
        blocked,
        strength=Strength.WEAK,
        summary=f"Rank {number} has been in the loop `while {loops.condition(loop)}` around {locations.short(at)} for {lasted:.0f} s, at full CPU, without any progress.",
        where=at,
        evidence={
            f"every snapshot since the silence began shows that line; the longest earlier pause of this job was {cell.watch.longest_quiet_s or 0:.1f} s": "watch.json#looks",
            "Python of the rank answered between two snapshots: no single call holds the GIL": answered,
        },
        fix=FIX,
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the loop ever ends",
    )


def _asks_in_vain(cell: CellEvidence, blocked: BlockedRank, motion: RankMotion | None) -> Iterator[Draft]:
    """A loop whose variables change, except those that would end it, such as rejection sampling, in a job given up."""
    loop = motion.loop if motion else None
    longest = cell.watch.longest_quiet_s or 0.0
    if (
        not was_given_up(cell)
        or loop is None
        or loop.hidden
        or loop.asks_in_vain_s <= max(LONG_S, PAUSES * longest)
    ):
        return
    number, at = blocked.number, locations.place(loop.file, loop.line, loop.function)
    asks = ", ".join(loop.asks)
    tries = f"it computes new values ({', '.join(loop.changes)}), but " if loop.changes else ""
    yield inside_rank(
        cell,
        blocked,
        strength=Strength.WEAK,
        summary=f"Rank {number} spins in the loop at {locations.short(at)} at full CPU: {tries}{asks}, which would end it, has been the same for {loop.asks_in_vain_s:.0f} s.",
        where=at,
        evidence={
            f"samples of every snapshot since show the same call of {loop.function}, in that loop, with no new value of {asks}": "watch.json#looks",
            f"that lasted {loop.asks_in_vain_s:.0f} s; the longest earlier pause of this job was {longest:.1f} s": "watch.json",
        },
        fix="Bound the loop: give up after a number of iterations, or choose among the remaining options instead of trying at random.",
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the loop ever ends",
    )


def _keeps_its_peers_waiting(case: Case, blocked: BlockedRank, motion: RankMotion | None) -> Iterator[Draft]:
    """A `while` in which the rank keeps calling its model or writing other events, so that it looks like progress.

    Only the waiting peers show that it is none: a line search, for example, whose loss is nan.
    """
    wait, loop = case.once(peer_waits).by_rank.get(blocked.number), motion.loop if motion else None
    longest_s = case.once(peer_waits).longest_s
    if case.cell.stopped not in ("timeout", "interrupt") or wait is None or not loop or loop.changes:
        return
    at = locations.place(loop.file, loop.line, loop.function)
    around = loops.while_at(case.cell.code, at)
    if around is None or wait.now_s <= max(LEAST_S, PAUSES * longest_s):
        return
    rounds, kept = _events_a_second(blocked), kept_waiting(case, replace(wait, at=at))
    yield inside_rank(
        case.cell,
        blocked,
        strength=Strength.LIKELY,
        summary=f"{kept[:1].upper()}{kept[1:]}: it is in the loop `while {loops.condition(around)}`, in which nothing changed.",
        where=at,
        evidence={
            f"{loop.samples} samples of the last snapshot show {loop.stacks} stacks, all in that loop (lines {', '.join(map(str, loop.lines))}), and no new value of a variable in it": "watch.json#looks",
            f"it wrote {rounds:,.0f} events a second meanwhile, and entered no collective; the longest earlier wait for any rank was {longest_s:.2f} s": f"{blocked.rank.source}/blackbox.bin",
        },
        fix=FIX,
        next_step="nsadiag run --locals --timeout 600 -- <the same command>, to see what the loop's condition compares",
    )


def _events_a_second(blocked: BlockedRank) -> float:
    """Figures of the rank's newest events, all of which belong to that loop."""
    t_ns = blocked.rank.recording.events["t_ns"][-1000:]
    return (len(t_ns) - 1) / max(float(t_ns[-1] - t_ns[0]) / 1e9, 1e-3) if len(t_ns) > 1 else 0.0


RULE = Rule(
    name="livelock_user_code",
    means={"livelock_user_code": "A rank spins in a loop of its own code that never ends."},
    family="blocked",
    detected="The rank uses a full CPU in one loop of the user's code, and one of these holds. No variable in the loop took a new value over several snapshots (for 20 s; for 8 s where compared numbers decide when it ends; where it calls libraries, only if the loop ends by comparing variables alone, as the rank reports them), no clock is read, and no other part of the process works. Or, when the job was given up, every snapshot for as long showed the same line within a `while`, and Python of the rank answered in between, so that it is no single call. Or the values that would end the loop have stayed the same for a minute and ten of the longest pauses, within one call, while other variables changed (at 60 %). Or, when the job was cut off, the rank had kept its peers waiting for 20 s and ten times longer than any rank before, in a `while` whose last snapshot shows many iterations and no new value, whatever it calls",
    fix="Give the loop an exit condition that can become true, or a limit.",
    check=livelock_user_code,
    needs=("stacks", "looks"),
    explained_by=("local_lock_deadlock",),
    confused_with=("slow_compute", "gil_held_native_call", "local_lock_deadlock", "missing_rank"),
)

"""A rank spins in a loop of its own code, at full CPU, and nothing in that loop ever changes."""

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

FIX = "Make sure that each round changes what the loop's condition asks, or let the loop give up after a number of rounds, with an error that says so."


def _motion(cell: CellEvidence, rank: int) -> RankMotion | None:
    """The rank's, in the last snapshot; when time was up, in the last that showed its loop: a busy machine hides it in some."""
    looks = [motion for look in cell.watch.looks if (motion := look.of(rank))]
    if not is_still(cell):
        looks = [motion for motion in looks if motion.loop]
    return looks[-1] if looks else None


def _endless(cell: CellEvidence, motion: RankMotion | None) -> Loop | None:
    """The loop, where the watch called it endless; or, when time was up, where it had shown nothing new for long."""
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
        sees = "the variables that decide when it ends" if loop.decided else "any variable in it"
        yield inside_rank(
            case.cell,
            blocked,
            strength=(Strength.STRONG if loop.decided else Strength.LIKELY) if sure else Strength.WEAK,
            summary=f"Rank {number} spins in the loop at {locations.short(at)} without getting anywhere: for {loop.seconds:.0f} s none of {sees} took a new value.",
            where=at,
            evidence={
                f"{loop.samples} samples of the last snapshot show {loop.stacks} stacks, all in that loop (lines {', '.join(map(str, loop.lines))}), and no new value in {sees}": "watch.json#looks",
                f"its main thread used {motion.main_cpu_share if motion.loop_cpu_share is None else motion.loop_cpu_share:.2f} CPUs, wrote no event and read or wrote {motion.io_bytes} bytes": "watch.json#looks",
            },
            fix=FIX,
        )
    yield from blocked_elsewhere(case, ("python", "native"), "in a loop of Python")


def _around_one_line(cell: CellEvidence, blocked: BlockedRank) -> Iterator[Draft]:
    """A `while`, when time was up, around a call that takes nearly all of its time, so that no other line is ever seen."""
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
            f"every snapshot since the silence began shows that line; the longest pause of this job before was {cell.watch.longest_quiet_s or 0:.1f} s": "watch.json#looks",
            "Python of the rank answered between two snapshots: no single call keeps the GIL": answered,
        },
        fix=FIX,
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the loop ever ends",
    )


def _asks_in_vain(cell: CellEvidence, blocked: BlockedRank, motion: RankMotion | None) -> Iterator[Draft]:
    """A loop, when time was up, that goes on to new values, and none of them is of what would end it, as one that draws and rejects."""
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
    tries = f"it tries new values ({', '.join(loop.changes)}), and " if loop.changes else ""
    yield inside_rank(
        cell,
        blocked,
        strength=Strength.WEAK,
        summary=f"Rank {number} spins in the loop at {locations.short(at)} at full CPU: {tries}{asks}, which would end it, has been the same for {loop.asks_in_vain_s:.0f} s.",
        where=at,
        evidence={
            f"samples of every snapshot since show one and the same call of {loop.function}, in that loop, with no new value of {asks}": "watch.json#looks",
            f"that lasted {loop.asks_in_vain_s:.0f} s; the longest pause of this job before was {longest:.1f} s": "watch.json",
        },
        fix="Bound the loop: give up after a number of rounds, or choose from what is left instead of trying at random.",
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the loop ever ends",
    )


def _keeps_its_peers_waiting(case: Case, blocked: BlockedRank, motion: RankMotion | None) -> Iterator[Draft]:
    """A `while` in which the rank calls its model, or writes other events, again and again: each round looks like progress.

    Only the peers' wait says that none of it is an iteration: a line search, say, whose loss is nan.
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
        summary=f"{kept[:1].upper()}{kept[1:]}: it is in the loop `while {loops.condition(around)}`, in which nothing took a new value.",
        where=at,
        evidence={
            f"{loop.samples} samples of the last snapshot show {loop.stacks} stacks, all in that loop (lines {', '.join(map(str, loop.lines))}), and no new value of a variable in it": "watch.json#looks",
            f"it wrote {rounds:,.0f} events a second of it meanwhile, and met no peer; the longest that any rank was waited for before is {longest_s:.2f} s": f"{blocked.rank.source}/blackbox.bin",
        },
        fix=FIX,
        next_step="nsadiag run --locals --timeout 600 -- <the same command>, to see what the loop's condition compares",
    )


def _events_a_second(blocked: BlockedRank) -> float:
    """Figures of its newest events, which are all of that loop."""
    t_ns = blocked.rank.recording.events["t_ns"][-1000:]
    return (len(t_ns) - 1) / max(float(t_ns[-1] - t_ns[0]) / 1e9, 1e-3) if len(t_ns) > 1 else 0.0


RULE = Rule(
    name="livelock_user_code",
    concludes=("livelock_user_code",),
    means={"livelock_user_code": "A rank is busy in a loop of its own code that never ends."},
    family="blocked",
    detected="full CPU in one loop of the user's, in which no variable took a new value over several snapshots (20 s; 8 s where compared numbers decide when it ends; where it calls into libraries, only if it ends by comparing variables alone, as the rank itself tells of their values), no clock is asked, and nothing else of the process works; or, when the job was given up, every snapshot for as long as above shows one line within a `while`, and Python of the rank answered in between: then it is no single call; or what would end the loop has stayed the same for a minute and ten of the longest pauses, in one and the same call, while other variables went on (at 60 %); or it has kept its peers waiting for 20 s and ten times longer than any rank ever did when the job was cut off, in a `while` of which the last snapshot shows many rounds and no new value, whatever it calls there",
    fix="Give the loop an end that does not depend on what never changes.",
    check=livelock_user_code,
    needs=("stacks", "looks"),
    explained_by=("local_lock_deadlock",),
    confused_with=("slow_compute", "gil_held_native_call", "local_lock_deadlock", "missing_rank"),
)

"""A rank that spins in a loop of its own code at full CPU, while nothing in that loop changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.quiet_time import LEAST_S, LONG_S, PAUSES
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import BlockedRank, blocked_ranks
from nsadiag.analysis.relations.peer_waits import peer_waits
from nsadiag.analysis.relations.pending import is_still, was_given_up
from nsadiag.analysis.relations.steadiness import kept_waiting
from nsadiag.analysis.rules.drafts import at_line, inside_rank
from nsadiag.analysis.rules.reasons import blocked_elsewhere
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.watch import Loop, RankMotion
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source import loops

AT_ONCE_S = 1.0
BESIDE_SHARE = 0.06  # CPUs of other threads and children
MOST_NAMES = 5  # in a sentence
FOREVER = "while True"
FEWEST_FETCHES = 100  # a few epochs without a batch are nobody's fault


def livelock_user_code(case: Case) -> Iterator[Draft | Declined]:
    for blocked in blocked_ranks(case):
        motion = _motion(case.cell, blocked.number)
        loop = motion.loop if motion else None
        in_vain = _fetches_in_vain(case, blocked)
        if in_vain and (is_still(case.cell) or was_given_up(case.cell)):
            yield _fetching(case, blocked, *in_vain)
        elif motion and loop and _stays(case.cell, motion, loop):
            yield _staying(case.cell, blocked, motion, loop)
        elif motion and loop and _is_endless(case.cell, motion, loop):
            yield _endless(case.cell, blocked, motion, loop)
        elif motion and loop and _asks_in_vain(case.cell, loop):
            yield _retrying(case.cell, blocked, loop)
        elif loop:
            yield from _keeps_its_peers_waiting(case, blocked, loop)
        if motion and motion.main_cpu_share is not None:
            used = f"used {motion.main_cpu_share:.2f} CPUs"
            yield Declined(
                f"the main thread of rank {blocked.number} {used} at the last snapshot", "watch.json#looks"
            )
    yield from blocked_elsewhere(case, ("python", "native"), "does not run Python code")


def _motion(cell: CellEvidence, rank: int) -> RankMotion | None:
    """The rank's motion in the last snapshot; if the job was given up, in the last one that shows its loop."""
    motions = [motion for look in cell.watch.looks if (motion := look.of(rank))]
    if not is_still(cell):
        motions = [motion for motion in motions if motion.loop]
    return motions[-1] if motions else None


def _is_endless(cell: CellEvidence, motion: RankMotion, loop: Loop) -> bool:
    """Whether the watch judged it endless; or, if the job was given up, nothing new was seen in it for long."""
    if _gets_somewhere(loop):
        return False
    if is_still(cell):
        return motion.endless
    limit_s = max(LEAST_S, PAUSES * (cell.watch.longest_quiet_s or 0.0))
    return was_given_up(cell) and not loop.changes and loop.seconds > limit_s


def _stays(cell: CellEvidence, motion: RankMotion, loop: Loop) -> bool:
    """Whether the rank itself told, in answers far enough apart, that what has a say in the loop's end stays.

    Not where another part of the process works, which may be what it waits for.
    """
    beside = motion.cpu_share - (motion.loop_cpu_share or 0.0)
    if is_still(cell):
        told = loop.recurs > 0 or (bool(loop.stays) and not _gets_somewhere(loop))
        return motion.endless and told
    if loop.recurs:
        return was_given_up(cell) and beside < BESIDE_SHARE
    limit_s = max(LEAST_S, PAUSES * (cell.watch.longest_quiet_s or 0.0))
    return was_given_up(cell) and beside < BESIDE_SHARE and loop.stays_s > limit_s


def _gets_somewhere(loop: Loop) -> bool:
    """Whether the rank itself told that what has a say in its end went on at the last snapshot: tensors, of which no sample shows more than an address."""
    return bool(loop.stays) and loop.stays_s < AT_ONCE_S


def _asks_in_vain(cell: CellEvidence, loop: Loop) -> bool:
    """Whether its variables change except those that would end it (rejection sampling), in a job given up."""
    limit_s = max(LONG_S, PAUSES * (cell.watch.longest_quiet_s or 0.0))
    return was_given_up(cell) and not (loop.hidden or _gets_somewhere(loop)) and loop.asks_in_vain_s > limit_s


def _place(loop: Loop) -> Place:
    return locations.place(loop.file, loop.line, loop.function)


def _seen_in(loop: Loop) -> str:
    lines = f"line{'s' * (len(loop.lines) > 1)} {', '.join(map(str, loop.lines))}"
    samples, stacks = count(loop.samples, "sample"), count(loop.stacks, "stack")
    return f"{samples} of the last snapshot show {stacks}, all in that loop ({lines})"


def _endless(cell: CellEvidence, blocked: BlockedRank, motion: RankMotion, loop: Loop) -> Draft:
    sees = "the variables that decide when it ends" if loop.decided else "its variables"
    strength = Strength.STRONG if loop.decided else Strength.LIKELY
    cpu = motion.main_cpu_share if motion.loop_cpu_share is None else motion.loop_cpu_share
    return inside_rank(
        cell,
        blocked,
        strength=strength if is_still(cell) else Strength.WEAK,
        summary=f"Rank {blocked.number} spins in the loop{at_line(_place(loop))} without progress: for {loop.seconds:.0f} s none of {sees} changed.",
        at=_place(loop),
        evidence={
            f"{_seen_in(loop)}, and no new value in {sees}": "watch.json#looks",
            f"its main thread used {cpu:.2f} CPUs, wrote no event and read or wrote {motion.io_bytes} bytes": "watch.json#looks",
        },
    )


def _staying(cell: CellEvidence, blocked: BlockedRank, motion: RankMotion, loop: Loop) -> Draft:
    names = ", ".join(f"`{name}`" for name in loop.stays[:MOST_NAMES])
    ends = (
        f", which ends where {' or '.join(f'`{each}`' for each in loop.conditions[:MOST_NAMES])}"
        if loop.text == FOREVER and loop.conditions
        else ""
    )
    pause_s = cell.watch.longest_quiet_s or 0.0
    stay = (
        f"{loop.recurs} rounds of it were followed line by line, and all that could end it{f' ({names})' if names else ''} came back to what it had been"
        if loop.recurs
        else f"nothing that could end it{f' ({names})' if names else ''} took a new value for {loop.stays_s:.0f} s"
    )
    cpu = motion.main_cpu_share if motion.loop_cpu_share is None else motion.loop_cpu_share
    return inside_rank(
        cell,
        blocked,
        strength=Strength.STRONG if (loop.constant or loop.recurs) and is_still(cell) else Strength.LIKELY,
        summary=f"Rank {blocked.number} spins in `{loop.text}`{at_line(_place(loop))}{ends}: {stay}.",
        at=_place(loop),
        evidence={
            f"the rank was asked in every snapshot since, and reported the values of {names or 'its variables'}: none was new": "watch.json#looks",
            f"its main thread used {cpu:.2f} CPUs; the longest pause of this job before was {pause_s:.1f} s": "watch.json#looks",
        },
    )


def _fetches_in_vain(case: Case, blocked: BlockedRank) -> tuple[int, Place] | None:
    """The number of fetches, the last things that its thread wrote, that ran out without a batch; and the line that asks."""
    number, at = 0, None
    for kind, phase, ran_out, site in reversed(
        [*case.events_of(blocked.number)[["kind", "phase", "b", "site"]].itertuples()]
    ):
        if kind != Kind.DATA or (phase == Phase.END and not ran_out):
            break
        number += phase == Phase.END
        at = at or locations.of_text(site)
    return (number, at) if at is not None and number >= FEWEST_FETCHES else None


def _fetching(case: Case, blocked: BlockedRank, number: int, at: Place) -> Draft:
    around = loops.while_around(case.cell.code, at)
    loop = f"`{loops.statement(around)}`" if around is not None else "a loop"
    return inside_rank(
        case.cell,
        blocked,
        strength=Strength.LIKELY,
        summary=f"Rank {blocked.number} spins in {loop}{at_line(at)}: its last {number:,} fetches from the loader there ran out without a batch.",
        at=at,
        evidence={
            f"its last events are {number:,} fetches or more, each of which ended the epoch before it delivered anything": f"{blocked.rank.source}/blackbox.bin"
        },
        fix="Give every rank at least one batch of each source (drop_last=False, or shards of equal size), or let a feed fail whose whole epoch delivered nothing.",
    )


def _retrying(cell: CellEvidence, blocked: BlockedRank, loop: Loop) -> Draft:
    asks, lasted = ", ".join(f"`{name}`" for name in loop.asks), f"{loop.asks_in_vain_s:.0f} s"
    changes = ", ".join(f"`{name}`" for name in loop.changes)
    tries = f"it computes new values ({changes}), but " if loop.changes else ""
    pause = f"the longest earlier pause of this job was {cell.watch.longest_quiet_s or 0.0:.1f} s"
    return inside_rank(
        cell,
        blocked,
        strength=Strength.WEAK,
        summary=f"Rank {blocked.number} spins in the loop{at_line(_place(loop))} at full CPU: {tries}{asks}, which would end it, has been the same for {lasted}.",
        at=_place(loop),
        evidence={
            f"samples of every snapshot since show the same call of {loop.function}, in that loop, with no new value of {asks}": "watch.json#looks",
            f"that lasted {lasted}; {pause}": "watch.json",
        },
        fix="Bound the loop: give up after a number of iterations, or choose among the remaining options instead of trying at random.",
        next_step="nsadiag run --timeout 600 -- <the same command>, to see whether the loop ever ends",
    )


def _keeps_its_peers_waiting(case: Case, blocked: BlockedRank, loop: Loop) -> Iterator[Draft]:
    """A `while` in which the rank keeps calling its model or writing other events, so that it looks like progress.

    Only the waiting peers show that it is none: a line search, for example, whose loss is nan.
    """
    waits = case.once(peer_waits)
    wait, around = waits.by_rank.get(blocked.number), loops.while_at(case.cell.code, _place(loop))
    cut_off = case.cell.stopped in ("timeout", "interrupt")
    if not cut_off or wait is None or around is None or loop.changes or _gets_somewhere(loop):
        return
    if wait.now_s <= max(LEAST_S, PAUSES * waits.longest_s):
        return
    kept = kept_waiting(case, dataclasses.replace(wait, at=_place(loop)))
    yield inside_rank(
        case.cell,
        blocked,
        strength=Strength.LIKELY,
        summary=f"{kept[:1].upper()}{kept[1:]}: it is in the loop `{loops.statement(around)}`, whose variables do not change.",
        at=_place(loop),
        evidence={
            f"{_seen_in(loop)}, and no new value of a variable in it": "watch.json#looks",
            f"it wrote {_events_a_second(blocked):,.0f} events a second meanwhile, and entered no collective; the longest earlier wait for any rank was {waits.longest_s:.2f} s": f"{blocked.rank.source}/blackbox.bin",
        },
        next_step="nsadiag run --locals --timeout 600 -- <the same command>, to see what the loop's condition compares",
    )


def _events_a_second(blocked: BlockedRank) -> float:
    """Figures of the rank's newest events, all of which belong to that loop."""
    t_ns = blocked.rank.recording.events["t_ns"][-1000:]
    return (len(t_ns) - 1) / max(float(t_ns[-1] - t_ns[0]) / 1e9, 1e-3) if len(t_ns) > 1 else 0.0


RULE = Rule(
    means={"livelock_user_code": "A rank spins in a loop of its own code that never ends."},
    family="blocked",
    detected="The rank uses a full CPU in one loop of the user's code, and no variable in the loop takes a new value over several snapshots: for 20 s, or for 8 s where compared numbers decide when it ends. The loop reads no clock, and no other part of the process works. Or the rank itself, asked in every snapshot, reported of what has a say in the loop's end (by the source) nothing that had not been there before, for 20 s, whatever else in it changed; where it reported something new, nothing is concluded. Or, when the job was given up, the values that would end the loop have stayed the same for a minute and ten of the longest pauses, while other variables changed (at 60 %). Or, when the job was cut off, the rank had kept its peers waiting for 20 s and ten times longer than any rank before, in a `while` in whose last snapshot nothing changed, whatever it calls. Or its last 100 events or more are fetches from loaders that ran out without a batch.",
    fix="Make sure that each iteration changes what the loop's condition tests, or let the loop give up with an error after a number of iterations.",
    check=livelock_user_code,
    needs=("stacks", "looks"),
    explained_by=("local_lock_deadlock",),
    confused_with=("slow_compute", "gil_held_native_call", "local_lock_deadlock", "missing_rank"),
)
